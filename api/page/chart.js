// Charts. The chart library is large: it is loaded for the first chart.

import { colour } from "./colours.js";

const LEGEND_LINE = 19;
export const MOST_POINTS = 60; // a longer curve is drawn without markers

let library = null;

export function load() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      library = null;
      reject(new Error("cannot load the chart library; reload the page"));
    };
    document.head.append(script);
  });
  return library;
}

// A chart in `element`, with a description in the element `words`. `make()` returns { traces, layout, words }; the chart calls
// it for new data (`draw()`), after a change of size and after a change of colours.
export class Chart {
  constructor(element, words, make, signal) {
    Object.assign(this, { element, words, make, signal, pending: false });
    const again = () => this.draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again, { signal });
    window.addEventListener("themechange", again, { signal });
    const sizes = new ResizeObserver(again);
    sizes.observe(element);
    signal.addEventListener("abort", () => {
      sizes.disconnect();
      library?.then((plotly) => plotly.purge(element));
    });
  }

  // Draws at most once for each frame of the browser.
  draw() {
    if (this.pending || this.signal.aborted) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.render().catch((error) => { this.words.textContent = error.message; });
    });
  }

  async render() {
    const { clientWidth: width } = this.element;
    if (!width) return; // hidden: drawn when it gets a size
    const plotly = await load();
    if (this.signal.aborted) return;
    const { traces, layout, words } = this.make();
    const named = layout.showlegend ? traces.filter(({ showlegend }) => showlegend !== false).length : 0;
    this.element.style.setProperty("--legend", `${named * LEGEND_LINE}px`);
    const size = { width, height: this.element.clientHeight };
    await plotly.react(this.element, traces, { ...plain(), ...layout, ...size }, { displayModeBar: false });
    this.words.textContent = words;
  }

  // The picture as it is on the screen: "svg", or "png" with twice the pixels.
  async export(format) {
    const plotly = await load();
    const { clientWidth: width, clientHeight: height } = this.element;
    const address = await plotly.toImage(this.element, { format: "svg", width, height });
    if (format === "svg") return new Blob([decodeURIComponent(address.slice(address.indexOf(",") + 1))], { type: "image/svg+xml" });
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }
}

function plain() {
  const sheet = colour("--sheet");
  return {
    paper_bgcolor: sheet, plot_bgcolor: sheet, hovermode: "x unified",
    hoverlabel: { bgcolor: sheet, bordercolor: colour("--line"), font: { color: colour("--ink") } },
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 12 },
    // No extra space between the groups of the legend.
    legend: { orientation: "h", x: 0, y: 1.03, yanchor: "bottom", font: { size: 12 }, tracegroupgap: 0 },
    margin: { l: 48, r: 14, t: 36, b: 40 },
  };
}

export function axis(title, more = {}) {
  return {
    title: { text: title, standoff: 8 }, gridcolor: colour("--grid"), linecolor: colour("--line"),
    zeroline: false, automargin: true, ...more,
  };
}
