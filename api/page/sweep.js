// Several jobs from one form: every combination of the values of the axes, with every seed. The same labels as in
// jobs/spec/sweep.py: `fedsim sweep` finds the jobs of such a submission by their group and spec.

import { Draft } from "./draft.js";
import { whole } from "./exact_json.js";
import { CATALOGUES, parseInput } from "./schema.js";
import { yaml } from "./yaml.js";

const MOST_SEEDS = 1000; // of one range
const MOST_LETTERS = 100; // of a job's name

// The seeds in "1, 2, 3" or "1-5", each once; null if the text is something else.
export function parseSeeds(text) {
  const found = text.split(",").map((part) => part.trim()).map((part) => {
    const [, first, last = first] = part.match(/^(\d+)(?:\s*-\s*(\d+))?$/) ?? [];
    if (first === undefined) return [];
    if (first === last) return [whole(first)];
    return Array.from({ length: Math.max(0, Math.min(MOST_SEEDS + 1, last - first + 1)) }, (_, index) => Number(first) + index);
  });
  const isWrong = found.some((seeds) => seeds.length === 0 || seeds.length > MOST_SEEDS || seeds.some((seed) => typeof seed === "number" && !Number.isSafeInteger(seed)));
  return isWrong ? null : [...new Set(found.flat())];
}

// Splits "a, [1, 2], {b: 3, c: 4}" at the commas outside of brackets and quotes.
function splitValues(text) {
  const parts = [""];
  let depth = 0;
  let quote = "";
  for (const letter of text) {
    if (quote) quote = letter === quote ? "" : quote;
    else if (letter === '"') quote = letter;
    else depth += "[{".includes(letter) - "]}".includes(letter);
    if (letter === "," && depth <= 0 && !quote) parts.push("");
    else parts[parts.length - 1] += letter;
  }
  return parts.map((part) => part.trim()).filter(Boolean);
}

// An axis: a path and its values, each value once, by its label.
export function makeAxis(path, text, type) {
  const values = splitValues(text).map((part) => parseInput(part, type));
  return { path, values: [...new Map(values.map((value) => [formatLabel(value), value]))].map(([label, value]) => ({ label, value })) };
}

// A value of an axis as people read it, such as "fedprox mu=0.1" for a mapping. A list is JSON with spaces, as Python writes it.
function formatLabel(value) {
  // Python writes 0.00001 as 1e-05.
  if (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-4) return value.toExponential().replace(/e-(\d)$/, "e-0$1");
  if (value === null || typeof value !== "object") return String(value);
  if (Array.isArray(value)) return JSON.stringify(value, null, 1).replace(/,\n\s*/g, ", ").replace(/\n\s*/g, "");
  const heads = ["name", "kind"].filter((key) => key in value).map((key) => String(value[key]));
  const rest = Object.entries(value).filter(([key]) => !["name", "kind"].includes(key)).map(([key, each]) => `${key}=${formatLabel(each)}`);
  return [...heads, ...rest].join(" ");
}

const formatLabelKey = (axis) => axis.replace(/[^A-Za-z0-9._/-]+/g, "-").slice(0, 64);

export const countRuns = ({ axes, seeds }) => axes.reduce((number, { values }) => number * values.length, seeds.length);

// "6 jobs: 2 x 3 seeds".
export function describeCount({ axes, seeds }) {
  const number = countRuns({ axes, seeds });
  if (number === 1) return "1 job";
  const factors = [...axes.map(({ values }) => String(values.length)), ...(seeds.length > 1 ? [`${seeds.length} seeds`] : [])];
  return factors.length > 1 || seeds.length > 1 ? `${number} jobs: ${factors.join(" x ")}` : `${number} jobs`;
}

// All combinations of the axes, each as `[{ path, label, value }]`.
export function listCells(axes) {
  return axes.reduce((cells, { path, values }) => cells.flatMap((cell) => values.map((each) => [...cell, { path, ...each }])), [[]]);
}

// The spec of one combination with one seed.
export function makeSpec(data, cell, seed) {
  const draft = new Draft(data);
  cell.forEach(({ path, value }) => draft.override(path, value, cell.map((each) => each.path)));
  if (seed !== undefined) draft.set("seed", seed);
  return draft.data;
}

export const describeCell = (cell) => cell.map(({ path, label }) => `${path} ${label}`).join(", ");

// A combination in the name of a job: "fedprox, lr=0.1". A field has its whole path if another varied field has its last word.
function nameCell(cell) {
  const lastWord = (path) => path.split(".").at(-1);
  const isAlone = (path) => cell.filter((each) => lastWord(each.path) === lastWord(path)).length === 1;
  return cell.map(({ path, label }) => (CATALOGUES[path] ? label : `${isAlone(path) ? lastWord(path) : path}=${label}`));
}

// All jobs, seed by seed: `[{ run, spec, labels }]`. Without axes and with one seed, the one job of the form.
export function listRuns({ data, axes, seeds, group, labels }) {
  if (!axes.length && seeds.length < 2) return [{ run: "", spec: data, labels }];
  return seeds.flatMap((seed) => listCells(axes).map((cell) => {
    const run = [...nameCell(cell), `seed ${seed}`].join(", ");
    const own = Object.fromEntries(cell.map(({ path, label }) => [formatLabelKey(path), label]));
    const name = [...`${group}: ${run}`].slice(0, MOST_LETTERS).join("");
    return { run, spec: { ...makeSpec(data, cell, seed), name }, labels: { ...labels, ...own, seed: String(seed), group } };
  }));
}

// The same jobs as the file of a sweep.
export function sweepFile({ data, axes, seeds, group, labels, priority }) {
  const { name, seed, ...base } = data;
  const own = new Set(["group", "seed", ...axes.map(({ path }) => formatLabelKey(path))]);
  const rest = Object.fromEntries(Object.entries(labels).filter(([key]) => !own.has(key)));
  return yaml({
    name: group, base, ...(axes.length ? { axes: Object.fromEntries(axes.map(({ path, values }) => [path, values.map(({ value }) => value)])) } : {}),
    seeds, ...(priority ? { priority } : {}), ...(Object.keys(rest).length ? { labels: rest } : {}),
  });
}
