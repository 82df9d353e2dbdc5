// The round records of a job, and the curves that can be drawn of them.

import { listMethodCurves, NOTHING_REPORTED } from "./method_curves.js";
import { bytes, flops, formatMetricName, number, span } from "./formatting.js";
import { describeAxis, findKind, findMetric, isLowerBetter, METRICS } from "./metrics.js";

export const AXES = {
  rounds: { name: "Rounds", title: "round" },
  bytes: { name: "Traffic", title: "simulated traffic, down and up", ticks: { tickformat: ".3~s", ticksuffix: "B" } },
  seconds: { name: "Computing time", title: "computing time (s)" },
  updates: { name: "Parameter updates", title: "parameter updates, cumulative", ticks: { tickformat: ".3~s" } },
  flops: { name: "FLOPs", title: "training FLOPs, cumulative", ticks: { tickformat: ".3~s" } },
  clock: { name: "Simulated time", title: "simulated time (s)", needsDevices: true },
  joules: { name: "Energy", title: "energy of the clients (J), cumulative", ticks: { tickformat: ".3~s" }, needsDevices: true },
};

// The axes for a choice: simulated time and energy only if the clients have devices.
export const listAxes = (hasDevices) => Object.entries(AXES).filter(([, { needsDevices }]) => hasDevices || !needsDevices);

// The round records of a job, in order, with the running totals of traffic, computing time and cost of training. `method`
// holds the values that the algorithm reports, as the service describes them.
export class Records {
  constructor() {
    Object.assign(this, { all: [], bytes: [], seconds: [], updates: [], flops: [], clock: [], joules: [], failed: 0, restarts: 0, method: NOTHING_REPORTED });
  }

  get last() {
    return this.all.at(-1);
  }

  // Adds a record; returns false if it was added before, as after a reconnection.
  add(record) {
    if (this.last && record.round <= this.last.round) return false;
    this.all.push(record);
    this.bytes.push((this.bytes.at(-1) ?? 0) + record.bytes.down + record.bytes.up);
    this.seconds.push((this.seconds.at(-1) ?? 0) + record.seconds.total);
    // Records of older versions have no cost.
    for (const part of ["updates", "flops"]) this[part].push((this[part].at(-1) ?? 0) + (record.cost?.[part] ?? 0));
    this.clock.push(record.clock?.total ?? 0);
    this.joules.push((this.joules.at(-1) ?? 0) + (record.clock?.joules ?? 0));
    this.failed += record.failed.length;
    this.restarts += record.engine.restarts ?? 0;
    return true;
  }

  along(axis) {
    return axis === "rounds" ? this.all.map(({ round }) => round) : this[axis];
  }

  // The points of a curve, one for each record with a number: `{ x, y, rounds }`.
  curve(read, axis) {
    const found = { x: [], y: [], rounds: [] };
    const along = this.along(axis);
    this.all.forEach((record, index) => {
      const value = read(record, index);
      if (typeof value !== "number") return;
      found.x.push(along[index]);
      found.y.push(value);
      found.rounds.push(record.round);
    });
    return found;
  }

  best(metric) {
    const sign = isLowerBetter(metric) ? -1 : 1;
    return this.all.reduce((top, record) => {
      const value = record.metrics[metric];
      return typeof value === "number" && !(top && sign * top.metrics[metric] >= sign * value) ? record : top;
    }, null);
  }
}

const metric = (name) => ({ name: formatMetricName(name), read: (record) => record.metrics[name] });

// The phases of a round, and their names. The same names as in api/reports/figures.py.
export const PHASES = [
  ["train", "training"], ["evaluate", "evaluation"], ["personal", "personal evaluation"], ["server", "server update"],
  ["learn", "server training"], ["survey", "client survey"],
];

// The phases that took any time.
export const phasesOf = ({ all }) => PHASES.filter(([phase]) => all.some(({ seconds }) => seconds[phase] > 0.0005));

const WAYS = ["down", "up"].map((way) => ({ name: way, read: ({ bytes }) => bytes[way] }));

const IN_FLOPS = { axis: "FLOP", write: flops };
const IN_BYTES = { axis: "bytes", write: bytes };

const capitalise = (text) => text[0].toUpperCase() + text.slice(1);

// All curves: `{ key: { name, lines: [{ name, read }], share, lower, axis, write } }`. `share` is true for values in [0, 1], `lower`
// if lower is better; `axis` is the unit, and `write` gives a value as text. `read` takes a record and its index. The first curves
// are those of the main metric; before the first evaluation they have no lines.
export function choices(records) {
  const names = [...new Set(records.all.flatMap(({ metrics }) => Object.keys(metrics)))];
  const scored = names.filter(findMetric);
  // The page opens with the main metric; before the first evaluation with the accuracy.
  const isScored = scored.some((name) => findKind(name) !== "loss" && !/_before$/.test(name));
  const found = isScored ? {} : { accuracy: { name: "Accuracy", lines: [], share: true } };
  for (const kind of [...Object.keys(METRICS), "loss"]) {
    const all = scored.filter((name) => findKind(name) === kind);
    const text = capitalise(METRICS[kind]?.title ?? kind);
    const more = { share: METRICS[kind]?.unit === "share", lower: !METRICS[kind]?.higher, axis: describeAxis(kind) };
    const [before, now] = [true, false].map((is) => all.filter((each) => /_before$/.test(each) === is));
    if (now.length) found[kind] = { name: text, lines: now.map(metric), ...more };
    if (before.length) found[`${kind}_before`] = { name: `${text} before fine-tuning`, lines: before.map(metric), ...more };
  }
  names.filter((name) => !scored.includes(name)).forEach((name) => {
    found[name] = { name: formatMetricName(name), lines: [metric(name)] };
  });
  Object.entries(listMethodCurves(records)).forEach(([key, { name, lines }]) => { found[key] = { name: `Algorithm: ${name}`, lines }; });
  if (records.all.some(({ cost }) => cost)) {
    for (const [part, text, name, more] of [["updates", "Parameter updates", "updates", { write: number }], ["flops", "FLOPs", "FLOPs", IN_FLOPS]]) {
      found[part] = { name: `${text} per round`, lines: [{ name, read: ({ cost }) => cost?.[part] }], ...more };
      const total = ({ cost }, index) => cost && records[part][index];
      found[`${part}_so_far`] = { name: `${text}, cumulative`, lines: [{ name: `${name}, cumulative`, read: total }], ...more };
    }
  }
  found.seconds = { name: "Seconds per round", lines: phasesOf(records).map(([phase, name]) => ({ name, read: ({ seconds }) => seconds[phase] ?? 0 })), axis: "seconds", write: span };
  found.bytes = { name: "Traffic per round", lines: WAYS, ...IN_BYTES };
  return found;
}

// The curves for a second axis: the values that the algorithm reports, and metrics that are no scores.
export function sides(records) {
  const found = listMethodCurves(records);
  const names = new Set(records.all.flatMap(({ metrics }) => Object.keys(metrics)));
  [...names].filter((name) => !findKind(name)).forEach((name) => {
    const values = new Set(records.all.map(({ metrics }) => metrics[name]).filter((value) => typeof value === "number"));
    if (values.size > 1) found[name] = { name: formatMetricName(name), lines: [metric(name)] };
  });
  return found;
}
