// A small curve for a row of the table of jobs.

import { element } from "./element.js";
import { accuracy } from "./formatting.js";

const WIDTH = 96;
const HEIGHT = 22;

export function makeSparkline() {
  const line = element("path", { class: "spark-line" });
  const picture = element("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "no accuracy measured yet" }, line);
  return { picture, update: (curve, total) => update(picture, line, curve, total) };
}

// The full width is the total number of rounds, so that the curve shows the progress.
function update(picture, line, { rounds, values }, total) {
  if (!rounds.length) return;
  const low = Math.min(...values);
  const high = Math.max(...values);
  const x = (round) => (1 + (WIDTH - 2) * (round / Math.max(total, rounds.at(-1)))).toFixed(1);
  const y = (value) => (HEIGHT - 2 - (HEIGHT - 4) * (high > low ? (value - low) / (high - low) : 0.5)).toFixed(1);
  const points = rounds.map((round, index) => `${x(round)} ${y(values[index])}`);
  const path = points.length > 1 ? `M${points.join("L")}` : `M${points[0]}h1`;
  if (line.getAttribute("d") !== path) line.setAttribute("d", path);
  const words = `accuracy from ${accuracy(values[0])} to ${accuracy(values.at(-1))}, best ${accuracy(high)}`;
  if (picture.getAttribute("aria-label") !== words) picture.setAttribute("aria-label", words);
}
