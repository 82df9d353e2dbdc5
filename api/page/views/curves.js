// The curves of one job, with a choice of what is drawn against what.

import { axis, Chart } from "../chart.js";
import { colour, curveColour } from "../colours.js";
import { element, labelled, select } from "../element.js";
import { AXES, choices, marks } from "../series.js";
import { accuracy, number } from "../words.js";

const MOST_MARKS = 24;

export function curves(records, signal) {
  const chosen = { what: "accuracy", along: "rounds", whole: true };
  const picture = element("div", { class: "chart", id: "chart", role: "img", "aria-labelledby": "curves-head chart-words" });
  const words = element("p", { class: "soft", id: "chart-words" });
  const what = select([["accuracy", "Accuracy"]], "accuracy", (value) => { chosen.what = value; chart.draw(); }, { name: "what" });
  const along = select(Object.entries(AXES).map(([key, { name }]) => [key, name]), "rounds", (value) => {
    chosen.along = value;
    chart.draw();
  }, { name: "along" });
  const whole = element("input", { type: "checkbox", name: "whole", checked: true, on: { change: () => {
    chosen.whole = whole.checked;
    chart.draw();
  } } });
  const root = element("section", { class: "curves", "aria-labelledby": "curves-head" },
    element("div", { class: "title" }, element("h2", { id: "curves-head" }, "Curves"),
      element("div", { class: "controls" }, labelled("Show", what), labelled("Against", along),
        labelled("Whole scale", whole, { class: "labelled beside" }))),
    picture, words);

  const chart = new Chart(picture, words, () => {
    const all = choices(records);
    offer(what, all, chosen.what);
    const found = all[chosen.what] ?? { name: "Accuracy", lines: [], share: true };
    return drawing(records, found, chosen);
  }, signal);
  return { root, draw: () => chart.draw() };
}

// New metrics may come while the job runs; what is chosen stays.
function offer(control, all, value) {
  const keys = Object.keys(all);
  if (!keys.length || keys.join() === [...control.options].map((option) => option.value).join()) return;
  control.replaceChildren(...keys.map((key) => element("option", { value: key }, all[key].name)));
  control.value = keys.includes(value) ? value : keys[0];
}

function drawing(records, { lines, share, name }, { along, whole }) {
  const shown = lines.map((line) => ({ ...line, ...records.curve(line.read, along) })).filter(({ x }) => x.length);
  const traces = shown.map((line, index) => ({
    name: line.name, x: line.x, y: line.y, customdata: line.rounds, type: "scatter", cliponaxis: false,
    mode: line.x.length > 60 ? "lines" : "lines+markers", marker: { size: 5 },
    line: { color: curveColour(index), width: 2 },
    hovertemplate: `%{y:${share ? ".4f" : ".4~g"}}${along === "rounds" ? "" : " in round %{customdata}"}`,
  }));
  const isShare = share && whole;
  const layout = {
    showlegend: shown.length > 1,
    margin: { l: 48, r: 14, t: shown.length > 1 ? 34 : 14, b: 40 },
    xaxis: axis(AXES[along].title, {
      rangemode: "tozero", ...(along === "bytes" ? { tickformat: ".3~s", ticksuffix: "B" } : {}),
      ...(shown.length ? {} : { range: [0, 10] }),
    }),
    yaxis: axis("", isShare ? { range: [0, 1], tickformat: ".1f" } : { tickformat: share ? ".3~f" : ".3~s" }),
    ...markShapes(records, along),
  };
  return { traces, layout, words: sentence(shown, share, name) };
}

function markShapes(records, along) {
  const found = marks(records);
  const x = records.along(along);
  const line = { color: colour("--edge"), width: 1, dash: "dot" };
  // Something that changes in nearly every round is no mark.
  const drawn = found.length > MOST_MARKS ? [] : found;
  return {
    shapes: drawn.map(({ index }) => ({ type: "line", x0: x[index], x1: x[index], yref: "paper", y0: 0, y1: 1, line })),
    annotations: drawn.map(({ index, text }, order) => ({
      x: x[index], yref: "paper", y: 0.02 + 0.07 * (order % 3), text: plainText(text), showarrow: false, xanchor: "left",
      yanchor: "bottom", xshift: 3, font: { size: 11, color: colour("--soft") }, bgcolor: colour("--sheet"),
    })),
  };
}

// The chart library reads some markup in texts.
const plainText = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").slice(0, 60);

function sentence(shown, share, what) {
  if (!shown.length) return "No round has been scored yet.";
  const write = share ? accuracy : number;
  const lowest = /loss/i.test(what);
  return shown.map(({ name, y, rounds }) => {
    const best = y.reduce((top, value, index) => ((lowest ? value < y[top] : value > y[top]) ? index : top), 0);
    const end = `${name}: ${write(y.at(-1))} at round ${rounds.at(-1)}`;
    return share || lowest ? `${end}, best ${write(y[best])} at round ${rounds[best]}` : end;
  }).join("; ");
}
