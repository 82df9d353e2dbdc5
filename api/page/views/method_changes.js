// Changes that the algorithm reports, drawn over the curves. A lasting change, such as a phase, is a line with its text; any
// other change, such as frozen clients, is a tick. A text that would cover another one is left out of the picture: the list
// below the curves and the hover text have all of them.

import { colour, faint } from "../colours.js";
import { element, replaceIfChanged, setText, show } from "../element.js";
import { countOf } from "../formatting.js";

const LETTER = 5.9; // pixels, about
const ROW = 15;
const ROWS = [0, 1, 2];
const GAP = 8;
const NARROW = 500;
const PASSING_HEIGHT = 0.04; // of the height
const [MOST, FEW] = [60, 28]; // letters of a text, on a wide and on a narrow plot

// Escapes a text, because the chart library reads markup.
export const plainText = (text, most = MOST) => (text.length > most ? `${text.slice(0, most - 1)}…` : text)
  .replaceAll("&", "&amp;").replaceAll("<", "&lt;");

// `{ shapes, annotations }` for a plot of `width` pixels with values from 0 to `end`.
export function makeChangeShapes(changes, x, { width, end }) {
  const [strong, weak] = [colour("--soft"), colour("--edge")];
  const shapes = changes.map(({ index, lasting }) => ({
    type: "line", x0: x[index], x1: x[index], yref: "paper", y0: 0, y1: lasting ? 1 : PASSING_HEIGHT,
    line: lasting ? { color: weak, width: 1, dash: "dot" } : { color: strong, width: 1.5 },
  }));
  return { shapes, annotations: placeLabels(changes, x, width, end).map((place) => makeAnnotation(place, x)) };
}

// Places the lasting texts first, then the others where there is space.
export function placeLabels(changes, x, width, end) {
  const [lasting, passing] = [true, false].map((is) => changes.filter((change) => Boolean(change.lasting) === is));
  const taken = [];
  const most = width < NARROW ? FEW : MOST;
  for (const { index, ...change } of width < NARROW ? lasting : [...lasting, ...passing]) {
    const line = (x[index] / end) * width;
    // If the whole text does not fit, the lasting part is shown in full.
    const texts = [change.text, change.lasting || change.text].filter((each, place) => place || each.length <= most);
    for (const text of new Set(texts.map((each) => plainText(each, most)))) {
      const long = LETTER * text.length + GAP;
      const isLeft = line + long > width; // the text is to the left of its line
      const [from, to] = isLeft ? [line - long, line] : [line, line + long];
      const row = ROWS.find((each) => taken.every((other) => other.row !== each || other.to < from || other.from > to));
      if (from < 0 || row === undefined) continue;
      taken.push({ index, text, row, isLeft, from, to });
      break;
    }
  }
  return taken;
}

function makeAnnotation({ index, text, row, isLeft }, x) {
  return {
    x: x[index], yref: "paper", y: PASSING_HEIGHT, yshift: ROW * row, text, showarrow: false, yanchor: "bottom",
    xanchor: isLeft ? "right" : "left", xshift: isLeft ? -3 : 3, font: { size: 11, color: colour("--soft") }, bgcolor: faint(colour("--sheet"), 0.7),
  };
}

// Invisible points with the changes as hover text.
export function makeChangeTrace(changes, x, y) {
  return {
    name: "", x: changes.map(({ index }) => x[index]), y: changes.map(() => y), type: "scatter", mode: "markers", showlegend: false,
    marker: { size: 1, opacity: 0 }, text: changes.map(({ text }) => plainText(text)), hovertemplate: "%{text}<extra></extra>",
  };
}

// The list of all changes.
export function makeChangeList() {
  const head = element("summary", {}, "");
  const list = element("ol", { class: "marks", tabindex: "0", "aria-label": "Changes reported by the algorithm" });
  const root = element("details", { id: "marks", hidden: true }, head, list);
  return { root, update: (changes, records) => {
    show(root, changes.length > 0);
    setText(head, `${countOf(changes.length, "change")} reported by the algorithm`);
    replaceIfChanged(list, ...changes.map(({ index, text }) => element("li", {}, element("span", { class: "soft" }, `round ${records.all[index].round}`), ` ${text}`)));
  } };
}
