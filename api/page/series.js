// From round records to curves.

import { metricName } from "./words.js";

export const AXES = {
  rounds: { name: "Rounds", title: "round" },
  bytes: { name: "Traffic", title: "simulated traffic, down and up" },
  seconds: { name: "Seconds", title: "seconds of computing" },
};

// The records of a job as they come, with what has been sent and how long it took until each.
export class Records {
  constructor() {
    Object.assign(this, { all: [], bytes: [], seconds: [], failed: 0, restarts: 0 });
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
      const value = read(record);
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

// Nested values by dotted names.
export function flat(mapping, prefix = "") {
  return Object.entries(mapping ?? {}).flatMap(([key, value]) => (
    value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${prefix}${key}.`) : [[prefix + key, value]]
  ));
}

const metric = (name) => ({ name: metricName(name), read: (record) => record.metrics[name] });
const inMethod = (name) => ({ name: metricName(name), read: (record) => new Map(flat(record.method)).get(name) });

const FIXED = {
  seconds: ["Seconds of each round", ["train", "evaluate", "server", "survey"].map((phase) => (
    { name: phase, read: ({ seconds }) => seconds[phase] ?? 0 }
  ))],
  bytes: ["Bytes of each round", ["down", "up"].map((way) => ({ name: way, read: (record) => record.bytes[way] }))],
};

// What can be drawn of these records: `{ key: { name, lines: [{ name, read }], share } }`; `share` for figures in [0, 1].
export function choices(records) {
  const names = [...new Set(records.all.flatMap(({ metrics }) => Object.keys(metrics)))];
  const spread = names.filter((name) => /_std$/.test(name));
  const accuracies = names.filter((name) => /accuracy/.test(name) && !spread.includes(name));
  const losses = names.filter((name) => /loss/.test(name));
  const found = {};
  if (accuracies.length) found.accuracy = { name: "Accuracy", lines: accuracies.map(metric), share: true };
  if (losses.length) found.loss = { name: "Loss", lines: losses.map(metric) };
  names.filter((name) => ![...accuracies, ...losses].includes(name)).forEach((name) => {
    found[name] = { name: metricName(name), lines: [metric(name)] };
  });
  methodNames(records, (value) => typeof value === "number").forEach((name) => {
    found[`method.${name}`] = { name: `Method: ${metricName(name)}`, lines: [inMethod(name)] };
  });
  if (records.all.some(({ cost }) => cost)) {
    found.updates = { name: "Parameter updates of each round", lines: [{ name: "updates", read: ({ cost }) => cost?.updates }] };
    found.flops = { name: "FLOPs of each round", lines: [{ name: "FLOPs", read: ({ cost }) => cost?.flops }] };
  }
  Object.entries(FIXED).forEach(([key, [name, lines]]) => { found[key] = { name, lines }; });
  return found;
}

function methodNames(records, fits) {
  const names = new Set();
  records.all.forEach(({ method }) => flat(method).forEach(([name, value]) => { if (fits(value)) names.add(name); }));
  return [...names];
}

// Where what a method says of itself in words changes, such as its phase: `[{ index, text }]`. What stays the same
// from the first round to the last is no mark.
export function marks(records) {
  const before = new Map();
  const found = [];
  records.all.forEach(({ method }, index) => {
    for (const [name, value] of flat(method)) {
      if (typeof value === "number" || value === null) continue;
      const text = worded(value);
      if (before.get(name) !== text) found.push({ index, name, text: `${metricName(name)}: ${text}` });
      before.set(name, text);
    }
  });
  const changes = new Set(found.filter(({ index }) => index > 0).map(({ name }) => name));
  return found.filter(({ name }) => changes.has(name));
}

export const worded = (value) => (Array.isArray(value) ? value.join(", ") || "none" : String(value));
