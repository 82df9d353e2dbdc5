// From round records to curves.

import { methodCurves } from "./method_curves.js";
import { formatMetricName } from "./formatting.js";

export const AXES = {
  rounds: { name: "Rounds", title: "round" },
  bytes: { name: "Traffic", title: "simulated traffic, down and up", ticks: { tickformat: ".3~s", ticksuffix: "B" } },
  seconds: { name: "Seconds", title: "seconds of computing" },
  updates: { name: "Parameter updates", title: "parameter updates so far", ticks: { tickformat: ".3~s" } },
  flops: { name: "FLOPs", title: "training FLOPs so far", ticks: { tickformat: ".3~s" } },
};

// The records of a job as they come, with what has been sent, what training cost and how long it took until each.
export class Records {
  constructor() {
    Object.assign(this, { all: [], bytes: [], seconds: [], updates: [], flops: [], failed: 0, restarts: 0 });
  }

  get last() {
    return this.all.at(-1);
  }

  // Takes the next record; false for one that is here already, as after a reconnection.
  add(record) {
    if (this.last && record.round <= this.last.round) return false;
    this.all.push(record);
    this.bytes.push((this.bytes.at(-1) ?? 0) + record.bytes.down + record.bytes.up);
    this.seconds.push((this.seconds.at(-1) ?? 0) + record.seconds.total);
    // Records of older versions do not say.
    for (const part of ["updates", "flops"]) this[part].push((this[part].at(-1) ?? 0) + (record.cost?.[part] ?? 0));
    this.failed += record.failed.length;
    this.restarts += record.engine.restarts ?? 0;
    return true;
  }

  along(axis) {
    return axis === "rounds" ? this.all.map(({ round }) => round) : this[axis];
  }

  // One figure of every record that has it: `{ x, y, rounds }`.
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
    return this.all.reduce((top, record) => {
      const value = record.metrics[metric];
      return typeof value === "number" && !(top?.metrics[metric] >= value) ? record : top;
    }, null);
  }
}

const metric = (name) => ({ name: formatMetricName(name), read: (record) => record.metrics[name] });

// The parts of a round by which its seconds are told.
export const PHASES = [
  ["train", "training"], ["evaluate", "scoring"], ["personal", "scoring own models"], ["server", "server"], ["learn", "learning"],
  ["survey", "survey"],
];

// Those that took any time.
export const phasesOf = ({ all }) => PHASES.filter(([phase]) => all.some(({ seconds }) => seconds[phase] > 0.0005));

const WAYS = ["down", "up"].map((way) => ({ name: way, read: ({ bytes }) => bytes[way] }));

// What can be drawn of these records: `{ key: { name, lines: [{ name, read }], share } }`; `share` for figures in [0, 1];
// `read` is handed a record and which it is.
export function choices(records) {
  const names = [...new Set(records.all.flatMap(({ metrics }) => Object.keys(metrics)))];
  const spread = names.filter((name) => /_std(_|$)/.test(name));
  const accuracies = names.filter((name) => /accuracy/.test(name) && !spread.includes(name));
  const losses = names.filter((name) => /loss/.test(name));
  // What is looked at first stands there before anything is scored.
  const found = { accuracy: { name: "Accuracy", lines: [], share: true } };
  const kinds = [["accuracy", "Accuracy", accuracies, { share: true }], ["loss", "Loss", losses, {}]];
  for (const [key, text, all, more] of kinds) {
    const [before, now] = [true, false].map((is) => all.filter((each) => /_before$/.test(each) === is));
    if (now.length) found[key] = { name: text, lines: now.map(metric), ...more };
    if (before.length) found[`${key}_before`] = { name: `${text} before fine-tuning`, lines: before.map(metric), ...more };
  }
  names.filter((name) => ![...accuracies, ...losses].includes(name)).forEach((name) => {
    found[name] = { name: formatMetricName(name), lines: [metric(name)] };
  });
  Object.entries(methodCurves(records)).forEach(([key, { name, lines }]) => { found[key] = { name: `Method: ${name}`, lines }; });
  if (records.all.some(({ cost }) => cost)) {
    for (const [part, text, name] of [["updates", "Parameter updates", "updates"], ["flops", "FLOPs", "FLOPs"]]) {
      found[part] = { name: `${text} of each round`, lines: [{ name, read: ({ cost }) => cost?.[part] }] };
      const soFar = ({ cost }, index) => cost && records[part][index];
      found[`${part}_so_far`] = { name: `${text} so far`, lines: [{ name: `${name} so far`, read: soFar }] };
    }
  }
  found.seconds = { name: "Seconds of each round", lines: phasesOf(records).map(([phase, name]) => ({ name, read: ({ seconds }) => seconds[phase] ?? 0 })) };
  found.bytes = { name: "Bytes of each round", lines: WAYS };
  return found;
}

// What can be drawn beside the rest, on an axis of its own: how the method's values move, and metrics that are no scores.
export function sides(records) {
  const found = methodCurves(records);
  const names = new Set(records.all.flatMap(({ metrics }) => Object.keys(metrics)));
  [...names].filter((name) => !/accuracy|loss/.test(name)).forEach((name) => {
    const values = new Set(records.all.map(({ metrics }) => metrics[name]).filter((value) => typeof value === "number"));
    if (values.size > 1) found[name] = { name: formatMetricName(name), lines: [metric(name)] };
  });
  return found;
}
