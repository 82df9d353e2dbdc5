// The comparison table.

import { curveColour } from "../colours.js";
import { element } from "../element.js";
import { bytes, count, measure, formatMetricName, span } from "../formatting.js";

const CLEAR = 0.05;

export function comparisonTable(rows, metric, target) {
  const aim = target === null ? "the target" : measure(metric, target);
  const heads = ["", formatMetricName(metric), "best", `rounds to ${aim}`, `traffic to ${aim}`, `computing time to ${aim}`, "traffic", "computing time", "difference from the best"];
  const head = element("tr", {}, heads.map((text, index) => element("th", { scope: "col" },
    index ? text : element("span", { class: "for-readers" }, "Run"))));
  return element("table", { id: "compared" }, element("thead", {}, head), element("tbody", {}, rows.map((row, index) => line(row, index, metric))));
}

function line(row, index, metric) {
  const score = (found) => (found ? spread(found, (value) => measure(metric, value)) : "–");
  const size = (found, write) => (found ? spread(found, write, true) : "–");
  const [only] = row.lines;
  const label = row.alone ? element("a", { href: `#/jobs/${only.job.id}` }, row.name) : row.name;
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = curveColour(index);
  const missed = row.missed ? ` (${row.missed} ${row.missed === 1 ? "run" : "runs"} never reached it)` : "";
  return element("tr", { class: row.isBest ? "best" : null },
    element("th", { scope: "row" }, swatch, label, row.note),
    element("td", {}, score(row.final)),
    element("td", {}, score(row.best), row.lines.length === 1 && only.bestRound ? element("span", { class: "soft" }, ` at ${only.bestRound}`) : null),
    element("td", {}, row.rounds ? size(row.rounds, (value) => count(Math.round(value))) + missed : "not reached"),
    element("td", {}, size(row.bytesTo, bytes)),
    element("td", {}, size(row.secondsTo, span)),
    element("td", {}, size(row.bytes, bytes)),
    element("td", {}, size(row.seconds, span)),
    element("td", {}, verdict(row)));
}

function spread({ mean, deviation, values }, write, isCost = false) {
  if (values.length < 2 || (isCost && deviation < 1e-9 * Math.abs(mean))) return write(mean);
  return `${write(mean)} ± ${write(deviation)}`;
}

// Welch's t-test on the final values; it needs several seeds.
function verdict({ isBest, p }) {
  if (isBest) return "best";
  if (p === null) return "–";
  const text = `(p ${p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`})`;
  return p < CLEAR ? `worse ${text}` : `no significant difference ${text}`;
}
