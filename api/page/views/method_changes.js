// Where a method changes, drawn along the curves: a line and its words where something goes on from there, such as a
// phase; a tick for what only passes, such as who is frozen. Words that would stand on others are left out: all of them
// are in the list below the curves, and in what is told under the mouse.

import { colour, faint } from "../colours.js";
import { element, replaceIfChanged, setText, show } from "../element.js";

const LETTER = 5.9; // pixels, about
const ROW = 15;
const ROWS = [0, 1, 2];
const GAP = 8;
const NARROW = 500;
const PASSING_HEIGHT = 0.04; // of the height
const [MOST, FEW] = [60, 28]; // letters

// The chart library reads some markup in texts.
export const plainText = (text, most = MOST) => (text.length > most ? `${text.slice(0, most - 1)}…` : text)
  .replaceAll("&", "&amp;").replaceAll("<", "&lt;");

// For a picture whose plot is so many pixels wide, and stands for values from 0 to `end`: `{ shapes, annotations }`.
export function makeChangeShapes(marks, x, { width, end }) {
  const [strong, weak] = [colour("--soft"), colour("--edge")];
  const shapes = marks.map(({ index, lasting }) => ({
    type: "line", x0: x[index], x1: x[index], yref: "paper", y0: 0, y1: lasting ? 1 : PASSING_HEIGHT,
    line: lasting ? { color: weak, width: 1, dash: "dot" } : { color: strong, width: 1.5 },
  }));
  return { shapes, annotations: placeLabels(marks, x, width, end).map((place) => annotation(place, x)) };
}

// What goes on comes first; the rest where there is room.
export function placeLabels(marks, x, width, end) {
  const [lasting, passing] = [true, false].map((is) => marks.filter((mark) => Boolean(mark.lasting) === is));
  const taken = [];
  const most = width < NARROW ? FEW : MOST;
  for (const { index, ...mark } of width < NARROW ? lasting : [...lasting, ...passing]) {
    const line = (x[index] / end) * width;
    // What goes on is said whole rather than all of it cut short.
    const texts = [mark.text, mark.lasting || mark.text].filter((each, place) => place || each.length <= most);
    for (const text of new Set(texts.map((each) => plainText(each, most)))) {
      const long = LETTER * text.length + GAP;
      const isLeft = line + long > width; // then to the left of its line
      const [from, to] = isLeft ? [line - long, line] : [line, line + long];
      const row = ROWS.find((each) => taken.every((other) => other.row !== each || other.to < from || other.from > to));
      if (from < 0 || row === undefined) continue;
      taken.push({ index, text, row, isLeft, from, to });
      break;
    }
  }
  return taken;
}

function annotation({ index, text, row, isLeft }, x) {
  return {
    x: x[index], yref: "paper", y: PASSING_HEIGHT, yshift: ROW * row, text, showarrow: false, yanchor: "bottom",
    xanchor: isLeft ? "right" : "left", xshift: isLeft ? -3 : 3, font: { size: 11, color: colour("--soft") }, bgcolor: faint(colour("--sheet"), 0.7),
  };
}

// Unseen points that say under the mouse what changed.
export function makeChangeTrace(marks, x, y) {
  return {
    name: "", x: marks.map(({ index }) => x[index]), y: marks.map(() => y), type: "scatter", mode: "markers", showlegend: false,
    marker: { size: 1, opacity: 0 }, text: marks.map(({ text }) => plainText(text)), hovertemplate: "%{text}<extra></extra>",
  };
}

// All of them, in words.
export function makeChangeList() {
  const head = element("summary", {}, "");
  const list = element("ol", { class: "marks", tabindex: "0", "aria-label": "Marks of the method" });
  const root = element("details", { id: "marks", hidden: true }, head, list);
  return { root, update: (marks, records) => {
    show(root, marks.length > 0);
    setText(head, marks.length === 1 ? "1 mark of the method" : `${marks.length} marks of the method`);
    replaceIfChanged(list, ...marks.map(({ index, text }) => element("li", {}, element("span", { class: "soft" }, `round ${records.all[index].round}`), ` ${text}`)));
  } };
}
