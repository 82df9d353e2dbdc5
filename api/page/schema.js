// The JSON schema of a spec, read as the fields of a form.

import { stringify, whole } from "./exact_json.js";

// Sections that name one entry of a catalogue, with its parameters. `parameters` are those of the default section; a section with the default null may be left out.
export const CATALOGUES = {
  algorithm: { kind: "algorithms", key: "name", default: "fedavg" },
  model: { kind: "models", key: "name", default: "mlp" },
  "data.dataset": { kind: "datasets", key: "name", default: "digits" },
  attack: { kind: "attacks", key: "name", default: null },
  aggregation: { kind: "aggregators", key: "name", default: null },
  compression: { kind: "compressors", key: "name", default: null },
  "clients.sampler": { kind: "samplers", key: "name", default: "uniform" },
  "local.optimizer": { kind: "optimizers", key: "name", default: "sgd" },
  "local.schedule": { kind: "schedules", key: "name", default: "constant" },
  "devices.fleet": { kind: "fleets", key: "name", default: null },
  "devices.policy": { kind: "policies", key: "name", default: "wait" },
  "data.partition": { kind: "partitions", key: "kind", default: "dirichlet", parameters: { beta: 0.5, min_size: 1 } },
};

// Reads one property of the schema: `{ type, options, description, fallback, nullable, fields }`.
export function readProperty(property, definitions) {
  const { description, default: fallback } = property;
  const parts = (property.anyOf ?? [property]).map((part) => resolveReference(part, definitions));
  const real = parts.filter(({ type }) => type !== "null");
  const section = real.find(({ properties }) => properties);
  const found = { description: description ?? section?.description, fallback, nullable: parts.length > real.length };
  if (section) return { ...found, type: "section", fields: section.properties };
  if (real.length === 1) return { ...found, ...plain(real[0]) };
  return { ...found, type: "mixed", limits: real.map(limits).filter(Boolean).join(" or ") };
}

function resolveReference(part, definitions) {
  return part.$ref ? { ...definitions[part.$ref.split("/").at(-1)], ...part } : part;
}

function plain(part) {
  if (part.enum) return { type: "enum", options: part.enum };
  if (part.const !== undefined) return { type: "enum", options: [part.const] };
  if (["integer", "number", "boolean", "string"].includes(part.type)) return { type: part.type, limits: limits(part) };
  return { type: "mixed" };
}

function limits(part) {
  if (part.const !== undefined) return String(part.const);
  const low = part.minimum ?? part.exclusiveMinimum;
  const high = part.maximum ?? part.exclusiveMaximum;
  const words = [];
  if (low !== undefined) words.push(`${part.exclusiveMinimum === undefined ? "from" : "above"} ${low}`);
  if (high !== undefined && high < 1e5) words.push(`${part.exclusiveMaximum === undefined ? "to" : "below"} ${high}`);
  return words.join(" ");
}

// Parses typed text as a value of the spec. Text that cannot be parsed stays text: the service then reports the error.
export function parseInput(text, type) {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (type === "string") return trimmed;
  if (type === "boolean") return { true: true, false: false }[trimmed] ?? trimmed;
  if (/^(0|[1-9]\d*)$/.test(trimmed)) return whole(trimmed);
  try {
    return JSON.parse(trimmed);
  } catch {
    return trimmed;
  }
}

export function formatInput(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : stringify(value);
}
