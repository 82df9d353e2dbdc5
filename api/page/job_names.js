// The names of jobs, with short labels.

import { choice } from "./formatting.js";

const MOST_LETTERS = 40; // of one value
const MOST_ITEMS = 4; // of a list

const cut = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);

// A value of a spec in few words, never as JSON: "dirichlet (beta 0.1)", "0.9, 0.99".
function shorten(value) {
  if (value === null) return "none";
  if (Array.isArray(value)) return cut([...value.slice(0, MOST_ITEMS).map(shorten), ...(value.length > MOST_ITEMS ? ["…"] : [])].join(", ") || "none");
  if (typeof value !== "object") return cut(String(value));
  const key = ["name", "kind"].find((each) => each in value);
  return cut(key ? choice(value, key) : Object.entries(value).map(([name, each]) => `${name} ${shorten(each)}`).join(", "));
}

// A label in few words: a sweep writes a mapping or a list as JSON.
function shortenLabel(text) {
  if (!/^[{[]/.test(text)) return cut(text);
  try {
    return shorten(JSON.parse(text));
  } catch {
    return cut(text);
  }
}

// The name of a job, with short labels.
export const plainName = ({ name, labels = {} }) => Object.values(labels)
  .filter((label) => /^[{[]/.test(label)).reduce((text, label) => text.replace(label, () => shortenLabel(label)), name);
