// Numbers, times and specs as text.

import { findKind, isShare, METRICS } from "./metrics.js";

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];
const MOST_ITEMS = 16; // of a list
const SPANS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];

export const FINAL = new Set(["SUCCEEDED", "FAILED", "CANCELLED"]);
export const RESUMABLE = new Set(["FAILED", "CANCELLED"]);
export const ACTIVE = new Set(["STARTING", "RUNNING", "CANCELLING"]);
export const STATES = ["QUEUED", "STARTING", "RUNNING", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED"];

// A number with three digits and an SI prefix, e.g. `scale(75_031_281_360, "FLOP")`: "75 GFLOP".
function scale(value, unit) {
  if (typeof value !== "number") return "–";
  let size = 0;
  while (value >= 999.5 && size < PREFIXES.length - 1) {
    value /= 1000;
    size += 1;
  }
  return `${Number(value.toPrecision(3))} ${PREFIXES[size]}${unit}`;
}

export const bytes = (value) => scale(value, "B");
export const flops = (value) => scale(value, "FLOP");

// A long text without its middle, so that both ends stay: the seed of a job stands at the end of its name.
export function shortenMiddle(text, most) {
  if (text.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
}

export function span(seconds) {
  if (typeof seconds !== "number" || Number.isNaN(seconds)) return "–";
  const found = SPANS.find(([length]) => seconds >= length);
  if (!found) return seconds < 10 ? `${Number(seconds.toPrecision(2))} s` : `${Math.round(seconds)} s`;
  const [length, unit, small, smallUnit] = found;
  const rest = Math.floor((seconds % length) / small);
  return `${Math.floor(seconds / length)} ${unit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
}

export const seconds = (from, to) => (new Date(to) - new Date(from)) / 1000;
export const since = (moment) => span(Math.max(1, Math.floor(seconds(moment, Date.now())))).replace(/ \d+ (s|min|h)$/, "");
export const formatTime = (moment) => new Date(moment).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

// Rounds like Python: a half to the even number. Math.round takes the larger one.
export function roundHalfEven(value) {
  const below = Math.floor(value);
  if (value - below === 0.5) return below % 2 === 0 ? below : below + 1;
  return Math.round(value);
}

export const count = (value) => value.toLocaleString("en").replaceAll(",", " ");
// "1 worker", "2 workers".
export const countOf = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function number(value) {
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value)) return count(value);
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

// A number, text or list, in words; of a long list the first items.
export function formatValue(value) {
  if (typeof value === "number") return number(value);
  if (!Array.isArray(value)) return String(value);
  const rest = value.length > MOST_ITEMS ? `, … (${value.length} in all)` : "";
  return value.slice(0, MOST_ITEMS).map((each) => (typeof each === "number" ? number(each) : each ?? "–")).join(", ") + rest || "none";
}

export const accuracy = (value) => (typeof value === "number" ? value.toFixed(4) : "–");
export const measure = (metric, value) => (isShare(metric) ? accuracy(value) : number(value));

export function formatMetricName(metric) {
  const kind = findKind(metric);
  const written = kind ? metric.replace(kind, METRICS[kind]?.title ?? kind) : metric;
  return written.replaceAll("_", " ").replaceAll(".", ": ").replace("worst10", "of the worst 10 % of clients");
}

// The run time of a job in seconds; null before it starts.
export function secondsOfWork(job) {
  if (!job.started_at) return null;
  return seconds(job.started_at, job.finished_at ?? Date.now());
}

const parameters = (choice, key) => Object.entries(choice)
  .filter(([name, value]) => name !== key && value !== null && typeof value !== "object")
  .map(([name, value]) => `${name} ${value}`)
  .join(", ");

export function choice(entry, key = "name") {
  const rest = parameters(entry, key);
  return rest ? `${entry[key]} (${rest})` : entry[key];
}

// The number of jobs in each state, in the order of a job's life: "running 2 · queued 7".
export const formatCounts = (counts) => STATES.filter((state) => counts[state]).map((state) => `${state.toLowerCase()} ${count(counts[state])}`).join(" · ");
export const countAll = (counts) => Object.values(counts).reduce((total, each) => total + each, 0);

const several = (value) => (Array.isArray(value) ? value : [value]);

export const modelOf = (spec) => several(spec.model).map((each) => each.name).join(", ");
export const dataOf = (spec) => `${spec.data.dataset.name}, ${choice(spec.data.partition, "kind")}`;
export const curriculumOf = (spec) => (Object.values(spec.curriculum ?? {}).some(Boolean) ? " + curriculum" : "");
export const algorithmOf = (spec) => spec.algorithm.name + curriculumOf(spec);
export const cohortOf = ({ clients }) => Math.max(1, roundHalfEven(clients.total * clients.fraction));
