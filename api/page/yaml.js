// A spec as YAML: mappings line by line, short ones and lists within a line.

const PLAIN = /^[A-Za-z_][\w./+-]*( [\w./+-]+)*$/;
const WORDS = /^(true|false|null|~)$/i;
const LINE = 72;

export function yaml(data) {
  return Object.entries(data).map(([key, value]) => entry(key, value, "")).join("");
}

function entry(key, value, indent) {
  const isMapping = value !== null && typeof value === "object" && !Array.isArray(value);
  const line = `${indent}${scalar(key)}: ${inline(value)}\n`;
  const isNested = isMapping && Object.values(value).some((each) => each !== null && typeof each === "object");
  if (!isMapping || !Object.keys(value).length || (!isNested && line.length <= LINE)) return line;
  const rest = Object.entries(value).map(([name, each]) => entry(name, each, `${indent}  `));
  return `${indent}${scalar(key)}:\n${rest.join("")}`;
}

function inline(value) {
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (value === null || typeof value !== "object") return scalar(value);
  return `{${Object.entries(value).map(([key, each]) => `${scalar(key)}: ${inline(each)}`).join(", ")}}`;
}

function scalar(value) {
  if (typeof value !== "string") return String(value);
  // A text in JSON is one in YAML.
  return PLAIN.test(value) && !WORDS.test(value) ? value : JSON.stringify(value);
}
