// The tables of a comparison: the figures of each group, and what differs between the groups.

import { curveVariable } from "../colours.js";
import { element } from "../element.js";
import { bytes, count, countOf, measure, formatMetricName, number, span } from "../formatting.js";

// The scores of a group; a score has a column if any group has it.
const listScores = (groups, last) => [["final", "last round"], ["last_rounds", `mean of the last ${last}`], ["validated", "best by validation"]]
  .filter(([key]) => groups.some((group) => group[key]));

// The figures of groups with results, as the service computes them. `jobs` are the jobs by id.
export function comparisonTable(groups, { metric, target, last, baseline, lines }, jobs) {
  const aim = target === null ? "the target" : measure(metric, target);
  const scores = listScores(groups, last);
  const compared = scores.filter(([key]) => groups.some((group) => group[key]?.difference));
  const hasDevices = groups.some(({ clock }) => clock);
  const heads = [
    ...scores.map(([, title]) => title), ...compared.map(([, title]) => `difference, ${title}`),
    "best on test", `rounds to ${aim}`, `traffic to ${aim}`, `computing time to ${aim}`, "traffic", "computing time",
    ...(hasDevices ? [`simulated time to ${aim}`, `energy to ${aim}`, "simulated time", "energy"] : []),
  ];
  const rows = groups.map((group, index) => {
    const own = lines.find(({ run }) => run === group.runs[0]);
    const label = group.members.length === 1 ? element("a", { href: `#/jobs/${own.run}`, title: jobs.get(own.run)?.name ?? own.name }, group.name) : group.name;
    const texts = [
      ...scores.map(([key]) => formatScore(metric, group[key])), ...compared.map(([key]) => formatDifference(metric, group, key, baseline)),
      ...listCosts(group, own, metric, target), ...(hasDevices ? listSimulatedCosts(group) : []),
    ];
    return element("tr", { class: group.final?.is_best ? "best" : null }, element("th", { scope: "row" }, swatch(index), label, group.note), texts.map((text) => element("td", {}, text)));
  });
  return element("table", { id: "compared" }, headOf(formatMetricName(metric), heads), element("tbody", {}, rows));
}

// The head of a table; only screen readers read the first cell.
function headOf(first, heads) {
  return element("thead", {}, element("tr", {}, element("th", { scope: "col" }, element("span", { class: "for-readers" }, first)),
    heads.map((text) => element("th", { scope: "col" }, text))));
}

function swatch(index) {
  const made = element("span", { class: "swatch" });
  made.style.background = curveVariable(index);
  return made;
}

const formatScore = (metric, found) => (found ? formatSpread(found, (value) => measure(metric, value)) : "–");
const formatCost = (found, write) => (found ? formatSpread(found, write, true) : "–");

// The best round, and the costs of a group. Without a target, those to the target are missing.
function listCosts({ runs, best, cost_to_target: { rounds, bytes: traffic, seconds, missed }, ...group }, own, metric, target) {
  const missedBy = missed ? ` (${countOf(missed, "run")} never reached it)` : "";
  return [
    formatScore(metric, best) + (runs.length === 1 && own.best ? ` at ${own.best.round}` : ""),
    rounds ? formatCost(rounds, (value) => count(Math.round(value))) + missedBy : target === null ? "–" : "not reached",
    formatCost(traffic, bytes), formatCost(seconds, span), formatCost(group.bytes, bytes), formatCost(group.seconds, span),
  ];
}

// Simulated seconds and joules, to the target and of the whole run.
function listSimulatedCosts({ clock, joules, cost_to_target: target }) {
  const energy = (value) => `${number(value)} J`;
  return [formatCost(target.clock, span), formatCost(target.joules, energy), formatCost(clock, span), formatCost(joules, energy)];
}

function formatSpread({ mean, deviation }, write, isCost = false) {
  if (deviation === null || (isCost && deviation <= 1e-9 * Math.abs(mean))) return write(mean);
  return `${write(mean)} ± ${write(deviation)}`;
}

// "+0.0500 [0.0102, 0.0898], p = 0.020": the difference from the baseline, paired by seed.
function formatDifference(metric, group, key, baseline) {
  if (group.name === baseline) return "baseline";
  if (!group[key]?.difference) return "–";
  const { difference: { mean, low, high, pairs }, p_adjusted: p } = group[key];
  const write = (value) => measure(metric, value).replace("-", "−");
  const text = `${mean > 0 ? "+" : ""}${write(mean)}`;
  if (p === null) return `${text} (${pairs === 1 ? "1 seed" : `with all ${pairs} seeds`})`;
  return `${text} [${write(low)}, ${write(high)}], p ${p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`}`;
}

// The fields that differ between the groups with results, with the value of each; null if none differs.
export function differenceTable(groups, differences) {
  const places = groups.flatMap(({ runs }, index) => (runs.length ? [index] : []));
  const rows = differences.map(({ field, values }) => ({ field, values: places.map((place) => values[place]) })).filter(({ values }) => new Set(values).size > 1);
  if (!rows.length) return null;
  const heads = places.map((place, index) => [swatch(index), groups[place].name]);
  return element("table", { id: "differing" }, headOf("Field", heads), element("tbody", {}, rows.map(({ field, values }) => element("tr", {},
    element("th", { scope: "row" }, element("code", {}, field)), values.map((value) => element("td", {}, value))))));
}
