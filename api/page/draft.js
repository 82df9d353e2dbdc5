// The spec in the form: only the values that differ from the defaults, by dotted paths.

import { CATALOGUES } from "./schema.js";

const SHORT = { "data.tests": "kind" }; // a section that may be one word, and the field that the word sets

export class Draft {
  constructor(data = { algorithm: "fedavg" }) {
    this.data = structuredClone(data);
  }

  get(path) {
    const found = path.split(".").reduce((inner, key) => inner?.[key], this.data);
    const [, section, key] = path.match(/^(.*)\.(\w+)$/) ?? [];
    return found === undefined && key && SHORT[section] === key && typeof this.get(section) === "string" ? this.get(section) : found;
  }

  // Sets a value; undefined removes it, and removes sections that are empty then.
  set(path, value) {
    const keys = path.split(".");
    const last = keys.pop();
    const chain = [this.data];
    for (const [depth, key] of keys.entries()) {
      const inner = chain.at(-1);
      const short = SHORT[keys.slice(0, depth + 1).join(".")];
      if (short && typeof inner[key] === "string") inner[key] = { [short]: inner[key] };
      if (inner[key] === null || typeof inner[key] !== "object") inner[key] = {};
      chain.push(inner[key]);
    }
    if (value !== undefined) {
      chain.at(-1)[last] = value;
      return;
    }
    delete chain.at(-1)[last];
    for (let depth = keys.length; depth > 0 && !Object.keys(chain[depth]).length; depth -= 1) delete chain[depth - 1][keys[depth - 1]];
  }

  // The entry of a catalogue: its name and its parameters, from any form that the draft may have.
  choice(path) {
    const { key, default: fallback } = CATALOGUES[path];
    const value = this.get(path);
    if (Array.isArray(value)) return { name: null, several: value };
    if (value === undefined) return { name: fallback, isDefault: true, parameters: {} };
    if (typeof value === "string") return { name: value, parameters: {} };
    const { [key]: name, ...parameters } = value;
    return { name, parameters };
  }

  choose(path, name, parameters = {}) {
    const { key } = CATALOGUES[path];
    const kept = Object.fromEntries(Object.entries(parameters).filter(([, value]) => value !== undefined));
    this.set(path, Object.keys(kept).length ? { [key]: name, ...kept } : name);
  }
}
