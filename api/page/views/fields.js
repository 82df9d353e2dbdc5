// The fields of a new job, made from the JSON schema of the spec and from the catalogue.

import { element, select } from "../element.js";
import { CATALOGUES, readProperty, parseInput, formatInput } from "../schema.js";
import { parseSeeds } from "../sweep.js";

const LATE = ["evaluation", "resources", "faults", "checkpoint"];
const TOP = ["name", "seed", "rounds"];
const SHORT = 14; // letters that fit into a choice

// All fields for a draft. `changed(redraw)` is called after each change; `redraw` when other fields are needed.
export function fields({ schema, catalogue, draft, changed }) {
  const make = { definitions: schema.$defs, catalogue, draft, changed };
  const sections = Object.keys(schema.properties).filter((name) => !TOP.includes(name));
  const order = ["algorithm", "data", "clients", "model", "local", ...sections.filter((name) => !LATE.includes(name)), ...LATE];
  const drawn = [...new Set(order)].filter((name) => schema.properties[name]).map((name) => part(make, name, schema.properties[name]));
  return [group(make, "job", "", TOP.map((name) => [name, schema.properties[name]])), ...drawn];
}

function part(make, name, property) {
  if (CATALOGUES[name]) {
    const [choice, ...own] = choiceFields(make, name, property);
    const purpose = name === "algorithm" ? purposeField(make) : null;
    return element("fieldset", { data: { section: name } }, legend(name), purpose, choice, element("div", { class: "fields" }, own));
  }
  const read = readProperty(property, make.definitions);
  if (read.type !== "section") return group(make, name, "", [[name, property]]);
  return group(make, name, `${name}.`, Object.entries(read.fields), LATE.includes(name));
}

const legend = (name) => element("legend", {}, name);

// A field has the name of the YAML, without the section. A long name breaks after a dot.
const labelOf = (path) => (path.split(".").slice(1).join(".") || path).split(/(?<=\.)/).flatMap((part) => [element("wbr"), part]);

function group(make, name, prefix, properties, closed = false) {
  const inner = properties.flatMap(([key, property]) => anyField(make, prefix + key, property));
  const isSet = closed && make.draft.get(name) !== undefined;
  const body = closed
    ? element("details", { open: isSet }, element("summary", {}, "Advanced"), element("div", { class: "fields" }, inner))
    : element("div", { class: "fields" }, inner);
  return element("fieldset", { data: { section: name } }, legend(name), body);
}

function anyField(make, path, property) {
  if (path === "seed") return [seedsField(make, property)];
  if (CATALOGUES[path]) return choiceFields(make, path, property);
  const read = readProperty(property, make.definitions);
  if (read.type !== "section") return [field(make, path, read, make.draft.get(path), (value) => make.draft.set(path, value))];
  const inner = () => Object.entries(read.fields).flatMap(([key, each]) => anyField(make, `${path}.${key}`, each));
  if (!read.nullable) return inner();
  return [optional(make, path, read), ...(make.draft.get(path) ? inner() : [])];
}

// One seed, or several: the draft's spec has the first of them.
function seedsField({ draft, changed }, { description, default: fallback }) {
  const control = element("input", { name: "seed", value: draft.seeds ?? formatInput(draft.get("seed")), placeholder: String(fallback), autocomplete: "off", spellcheck: "false",
    on: { input: () => {
      const seeds = parseSeeds(control.value);
      draft.seeds = seeds?.length > 1 ? control.value : null;
      draft.set("seed", seeds ? seeds[0] : parseInput(control.value, "integer"));
      changed(false);
    } } });
  return makeLabelledField("seed", "seed, seeds", control, `${description}; several, such as 1, 2, 3 or 1-5: a job for each`);
}

// An optional section.
function optional({ draft, changed }, path, { description }) {
  const tick = element("input", { type: "checkbox", name: path, checked: Boolean(draft.get(path)), on: { change: () => {
    // An empty section has all its defaults; the draft keeps it until the reader switches it off.
    draft.set(path, tick.checked ? {} : undefined);
    changed(true);
  } } });
  return wrap(path, element("label", { class: "labelled beside" }, element("span", {}, labelOf(path)), tick), description);
}

// What algorithms are for. With a purpose, the list of algorithms has those for it, and the chosen one.
function purposeField({ draft, changed, catalogue }) {
  const purposes = [...new Set(catalogue.algorithms.flatMap((each) => each.purposes ?? []))].sort();
  const control = select([["", "any"], ...purposes.map((each) => [each])], draft.purpose, (value) => {
    draft.purpose = value;
    changed(true);
  }, { name: "purpose" });
  return makeLabelledField("purpose", "purpose", control, "lists the algorithms for this; it is no part of the job");
}

function choiceFields(make, path, property) {
  const { draft, changed, catalogue } = make;
  const { kind, default: fallback } = CATALOGUES[path];
  const { name, parameters, several, isDefault } = draft.choice(path);
  if (several) return [severalFields(make, path, several)];
  const entry = catalogue[kind].find((each) => each.name === name);
  const isListed = (each) => path !== "algorithm" || !draft.purpose || each.name === name || each.purposes?.includes(draft.purpose);
  const options = catalogue[kind].filter(isListed).map((each) => [each.name, each.name]);
  if (!entry && name) options.unshift([name, `${name} (unknown)`]);
  if (fallback === null) options.unshift(["", "none"]);
  const control = select(options, name ?? "", (value) => {
    if (value) draft.choose(path, value);
    else draft.set(path, undefined);
    changed(true);
  }, { name: path });
  const own = Object.entries(entry?.parameters.properties ?? {}).map(([key, property]) => {
    // A default section has its own parameters, until the reader chooses another entry.
    const value = isDefault ? undefined : parameters[key];
    return field(make, `${path}.${key}`, readProperty(property, {}), value, (next) => {
      draft.choose(path, name, { ...draft.choice(path).parameters, [key]: next });
    });
  });
  const standard = path === "data.partition" ? "default: dirichlet with beta 0.5" : fallback === null && property.description;
  const words = (isDefault && standard) || describeEntry(entry);
  const made = makeLabelledField(path, labelOf(path), control, words);
  widenForLongChoices(made, options.map(([, text]) => text));
  return [made, ...own];
}

// The summary of an entry, its paper, purposes and payloads, its plug-in, and the reason if it cannot train stacked clients.
function describeEntry(entry) {
  const purposes = entry?.purposes?.length > 0 && `for ${entry.purposes.join(", ")}`;
  const costs = entry?.costs && `relative to FedAvg: traffic ${entry.costs.traffic}, computing ${entry.costs.computing}`;
  const sent = entry?.costs && `down: ${entry.costs.down.join(", ") || "nothing"}, up: ${entry.costs.up.join(", ") || "nothing"}`;
  const alone = entry?.stacks === false && `cannot train stacked clients with its defaults: ${entry.why_not_stacked}`;
  return [entry?.summary, entry?.citation, purposes, costs, sent, entry?.plugin && `from the plug-in ${entry.plugin}`, alone].filter(Boolean).join("; ");
}

// Several models, one per client in turn: a JSON list.
function severalFields({ draft, changed }, path, several) {
  const control = element("input", { name: path, value: JSON.stringify(several), on: { input: () => {
    draft.set(path, parseInput(control.value, "mixed"));
    changed(false);
  } } });
  return makeLabelledField(path, `${path}: several models, one per client in turn`, control, 'a JSON list of model names or of objects with parameters, e.g. ["mlp", {"name": "logistic"}]');
}

function field({ changed }, path, read, value, write) {
  const { type, options, description, fallback, limits } = read;
  const common = { name: path, data: { type } };
  const update = (next) => {
    write(next);
    changed(false);
  };
  const label = labelOf(path);
  const plain = fallback === undefined || fallback === null ? "" : formatInput(fallback);
  if (type === "enum" || type === "boolean") {
    const all = type === "boolean" ? ["true", "false"] : options;
    const words = plain ? `${plain} (default)` : "not set";
    const control = select([["", words], ...all.map((each) => [String(each), String(each)])], formatInput(value), (next) => update(type === "enum" ? options.find((each) => String(each) === next) : parseInput(next, type)), common);
    const made = makeLabelledField(path, label, control, description);
    widenForLongChoices(made, [words, ...all.map(String)]);
    return made;
  }
  const control = element("input", {
    ...common, value: formatInput(value), placeholder: plain || "none", autocomplete: "off", spellcheck: "false",
    inputmode: type === "integer" ? "numeric" : type === "number" ? "decimal" : null,
    on: { input: () => update(parseInput(control.value, type)) },
  });
  return makeLabelledField(path, label, control, [description, limits].filter(Boolean).join("; "));
}

const widenForLongChoices = (made, texts) => made.classList.toggle("long", texts.some((text) => text.length > SHORT));

export function makeLabelledField(path, text, control, description) {
  const id = `field-${path}`;
  control.id = id;
  return wrap(path, element("label", { for: id }, text), description, control);
}

function wrap(path, label, description, control) {
  const words = element("p", { class: "soft hint", id: `hint-${path}` }, (description ?? "").replaceAll("`", ""));
  const fault = element("p", { class: "fault", id: `fault-${path}` });
  (control ?? label.querySelector("input")).setAttribute("aria-describedby", `fault-${path} hint-${path}`);
  return element("div", { class: "field", data: { path } }, label, control, fault, description ? words : null);
}
