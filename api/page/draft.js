// The spec in the form: only the values that differ from the defaults, by dotted paths.

import { CATALOGUES } from "./schema.js";

const REPLACES = { "local.steps": "local.epochs", "local.epochs": "local.steps" }; // fields that exclude each other
const SHORT = { "data.tests": "kind", devices: "fleet" }; // a section that may be one word, and the field that the word sets

// `seeds` is the text of several seeds, or null; the data has the first of them. `purpose` is that of the listed algorithms, or "".
export class Draft {
  constructor(data = { algorithm: "fedavg" }, seeds = null) {
    Object.assign(this, { data: structuredClone(data), seeds, purpose: "", orders: new Map() });
    this.expandTests();
  }

  // A list such as [matched, global] becomes {kind: matched, also: [global]}, as in the service: a list has no field to edit.
  expandTests() {
    const { data } = this.data;
    if (!Array.isArray(data?.tests)) return;
    const [first, ...also] = data.tests;
    const main = typeof first === "string" ? { kind: first } : first;
    if (main?.constructor === Object) data.tests = { ...main, also }; // the service refuses other lists
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
      if (inner[key] === null || typeof inner[key] !== "object") this.put(chain, keys.slice(0, depth), key, {});
      chain.push(inner[key]);
    }
    if (value !== undefined) {
      this.put(chain, keys, last, value);
      return;
    }
    this.remove(chain, keys, last);
    for (let depth = keys.length; depth > 0 && !Object.keys(chain[depth]).length; depth -= 1) this.remove(chain.slice(0, depth), keys.slice(0, depth - 1), keys[depth - 1]);
  }

  // Removes a key, and keeps its place: a field that is emptied and filled again stays where it was.
  remove(chain, keys, key) {
    const [section, path] = [chain.at(-1), keys.join(".")];
    const known = this.orders.get(path) ?? [];
    if (Object.keys(section).some((each) => !known.includes(each))) this.orders.set(path, Object.keys(section));
    delete section[key];
  }

  // Sets a key; a removed one gets its place again, before the keys that stood after it.
  put(chain, keys, key, value) {
    const section = chain.at(-1);
    const order = key in section ? [] : this.orders.get(keys.join(".")) ?? [];
    section[key] = value;
    if (!order.includes(key)) return;
    const later = Object.keys(section).filter((each) => order.indexOf(each) > order.indexOf(key));
    for (const each of later) {
      const held = section[each];
      delete section[each];
      section[each] = held;
    }
  }

  // The entry of a catalogue: its name and its parameters, from any form that the draft may have.
  choice(path) {
    const { key, default: fallback } = CATALOGUES[path];
    const value = this.get(path);
    if (Array.isArray(value)) return { name: null, several: value };
    if (value === undefined || value === null) return { name: fallback, isDefault: true, parameters: {} };
    if (typeof value === "string") return { name: value, parameters: {} };
    const { [key]: name, ...parameters } = value;
    return { name, parameters };
  }

  choose(path, name, parameters = {}) {
    const { key } = CATALOGUES[path];
    const kept = Object.fromEntries(Object.entries(parameters).filter(([, value]) => value !== undefined));
    this.set(path, Object.keys(kept).length ? { [key]: name, ...kept } : name);
  }

  // Sets a value by its path like `--set PATH=VALUE`: a word such as `fedprox` becomes a section for a parameter. `paths` are all
  // paths that are set together.
  override(path, value, paths) {
    const section = Object.keys(CATALOGUES).find((each) => path.startsWith(`${each}.`));
    const parameter = section && path.slice(section.length + 1);
    const isPlain = section && parameter !== CATALOGUES[section].key && !parameter.includes(".");
    if (isPlain && !this.choice(section).several) {
      const { name, isDefault, parameters } = this.choice(section);
      const others = isDefault ? CATALOGUES[section].parameters : parameters;
      this.choose(section, name, { ...others, [parameter]: value });
      return;
    }
    if (REPLACES[path] && !paths.includes(REPLACES[path])) this.set(REPLACES[path], undefined);
    this.set(path, value);
  }
}
