// The chart of accuracy by round. The chart library is large: it is loaded when the first chart is drawn.

const CURVES = [
  { metric: "global_accuracy", name: "global", colour: "--curve" },
  { metric: "personal_accuracy", name: "personal", colour: "--curve-two" },
];

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      library = null;
      reject(new Error("the chart library could not be loaded"));
    };
    document.head.append(script);
  });
  return library;
}

export class Chart {
  constructor(element, words) {
    this.element = element;
    this.words = words;
    this.pending = false;
    this.clear();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(element);
  }

  clear() {
    this.curves = CURVES.map(() => ({ x: [], y: [] }));
    this.latest = 0;
    this.draw();
  }

  add(record) {
    if (record.round <= this.latest) return;
    this.latest = record.round;
    CURVES.forEach(({ metric }, index) => {
      const value = record.metrics[metric];
      if (typeof value !== "number") return;
      this.curves[index].x.push(record.round);
      this.curves[index].y.push(value);
    });
    this.draw();
  }

  // Many records may come at once: one drawing for each frame is enough.
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.render().catch((error) => { this.words.textContent = error.message; });
    });
  }

  async render() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width) return; // not to be seen: it is drawn when it gets a size
    const plotly = await load();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    // Copies, because the library takes an array that it has seen before for unchanged.
    const shown = CURVES.map((curve, index) => {
      const { x, y } = this.curves[index];
      return { ...curve, x: [...x], y: [...y] };
    }).filter(({ x }) => x.length);
    const traces = shown.map(({ name, colour: variable, x, y }) => ({
      name, x, y, type: "scatter", cliponaxis: false,
      mode: x.length > 60 ? "lines" : "lines+markers",
      line: { color: colour(variable), width: 2 },
      hovertemplate: "round %{x}: %{y:.4f}<extra>%{fullData.name}</extra>",
    }));
    const axis = { gridcolor: colour("--grid"), linecolor: colour("--line"), zeroline: false, automargin: true };
    const layout = {
      width, height, margin: { l: 44, r: 12, t: shown.length > 1 ? 36 : 12, b: 40 },
      showlegend: shown.length > 1, legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom" },
      paper_bgcolor: colour("--sheet"), plot_bgcolor: colour("--sheet"),
      font: { color: colour("--ink"), family: "system-ui, sans-serif" },
      xaxis: { ...axis, title: { text: "round" }, rangemode: "tozero", ...(traces.length ? {} : { range: [0, 10] }) },
      yaxis: { ...axis, range: [0, 1], tickformat: ".1f" },
    };
    await plotly.react(this.element, traces, layout, { displayModeBar: false });
    this.words.textContent = sentence(shown);
  }
}

function sentence(shown) {
  if (!shown.length) return "No round has been scored yet.";
  return shown.map(({ name, x, y }) => {
    const best = y.reduce((top, value, index) => (value > y[top] ? index : top), 0);
    return `${name}: ${y.at(-1).toFixed(4)} at round ${x.at(-1)}, best ${y[best].toFixed(4)} at round ${x[best]}`;
  }).join("; ");
}
