// What a method says of its rounds, as curves, marks and clusters. No method is known by name: what becomes of a value
// depends on what it is.
//
//   a number            a curve, where it changes                              temperature: 4.5
//   a text, yes or no   a mark where it changes                                phase: "2 of 3"
//   a list of texts     a mark where it changes                                open_blocks: ["conv1", "head"]
//   a list of wholes    clients or rounds: a mark for who came and who went,    frozen: [3, 17]
//                       and a curve of how many they are
//                       where there is a list newly_X beside X, X may be     newly_frozen: [9]
//                       cut short, and its marks are those of newly_X
//   other numbers       a curve for each place of the list                     quantiles: [0.1, 0.4]
//   wholes by client    where the name says cluster: colours of the clients    clusters: [0, 2, 1, 0]

import { formatMetricName, number } from "./formatting.js";

const MOST_LINES = 8;
const MOST_MARKS = 24; // of one name: what changes nearly every round is no mark
const MOST_NAMED = 4;
const MOST_WORDS = 16;
const CLUSTERS = /cluster/;

// Nested values by dotted names; a mapping from each client's number to a whole number is a list.
export function flat(mapping, prefix = "") {
  return Object.entries(mapping ?? {}).flatMap(([key, value]) => {
    if (!value || typeof value !== "object" || Array.isArray(value)) return [[prefix + key, value]];
    return isByClient(value) ? [[prefix + key, Object.values(value)]] : flat(value, `${prefix}${key}.`);
  });
}

function isByClient(value) {
  const keys = Object.keys(value);
  return keys.length > 1 && keys.every((key, place) => Number(key) === place) && Object.values(value).every(Number.isInteger);
}

export function worded(value) {
  if (!Array.isArray(value)) return String(value);
  const rest = value.length > MOST_WORDS ? `, … (${value.length} in all)` : "";
  return value.slice(0, MOST_WORDS).map((each) => (typeof each === "number" ? number(each) : each ?? "–")).join(", ") + rest || "none";
}

function kind(name, value) {
  if (typeof value === "number") return "number";
  if (!Array.isArray(value)) return value === null ? "nothing" : "words";
  if (value.some((each) => typeof each === "string")) return "words";
  if (value.some((each) => each !== null && typeof each !== "number")) return "other";
  if (CLUSTERS.test(name) && value.every(Number.isInteger)) return "clusters";
  return value.every(Number.isInteger) ? "members" : "numbers";
}

// The method's values round by round: `Map(name => [value of the first record, ...])`, null where it said nothing.
function histories(all) {
  const found = new Map();
  all.forEach(({ method }, index) => {
    for (const [name, value] of flat(method)) {
      if (!found.has(name)) found.set(name, new Array(all.length).fill(null));
      found.get(name)[index] = value;
    }
  });
  return found;
}

// An empty list is of any kind: what it is of, the other rounds tell.
function kindOf(name, values) {
  const kinds = values.filter((value) => value !== undefined && value !== null && value.length !== 0).map((value) => kind(name, value));
  return kinds.find((each) => each === "numbers") ?? kinds[0] ?? "nothing";
}

const varies = (values) => new Set(values.filter((value) => typeof value === "number")).size > 1;

// Curves of the method: `{ key: { name, lines: [{ name, read }] } }`. What never changes is no curve.
export function methodCurves({ all }) {
  const places = new Map(all.map((record, index) => [record, index]));
  const line = (name, values) => ({ name, read: (record) => values[places.get(record)] });
  const every = histories(all);
  const found = {};
  for (const [name, values] of every) {
    const lines = linesOf(name, values, every).filter(([, points]) => varies(points));
    if (lines.length) found[`method.${name}`] = { name: formatMetricName(name), lines: lines.map(([text, points]) => line(text, points)) };
  }
  return found;
}

function linesOf(name, values, every) {
  const text = formatMetricName(name);
  switch (kindOf(name, values)) {
    case "number": return [[text, values]];
    case "members":
      // A long list may be cut short; where the method counts for itself, its count is right.
      return every.has(`${name}_clients`) || every.has(`${name}_count`) ? [] : [[`${text}, how many`, values.map((value) => value?.length)]];
    case "numbers": {
      const length = Math.min(MOST_LINES, Math.max(...values.map((value) => value?.length ?? 0)));
      return Array.from({ length }, (_, place) => [`${text} ${place + 1}`, values.map((value) => value?.[place])]);
    }
    default: return [];
  }
}

// Where what a method says in words changes, such as its phase: `[{ index, text, lasting }]`, all of one round together;
// `lasting` is the part of the text that goes on from there, as a phase does. What stays the same from the first round to
// the last is no mark.
export function marks({ all }) {
  const texts = new Map();
  const every = histories(all);
  for (const [name, values] of every) {
    if (every.has(`newly_${name}`)) continue;
    const kindName = kindOf(name, values);
    const found = kindName === "words" ? changed(name, values) : kindName === "members" ? moved(name, values) : [];
    if (found.length > MOST_MARKS || !found.some(({ index }) => index > 0)) continue;
    found.forEach(({ index, ...mark }) => texts.set(index, [...texts.get(index) ?? [], mark]));
  }
  const joined = (found) => found.map(({ text }) => text).join("; ");
  return [...texts].sort(([a], [b]) => a - b).map(([index, found]) => (
    { index, text: joined(found), lasting: joined(found.filter(({ lasts }) => lasts)) }
  ));
}

// A word that stands in one round alone, with nothing before and after it, is said in passing.
function changed(name, values) {
  const texts = values.map((value) => (value === null || value === undefined ? null : worded(value)));
  return texts.flatMap((text, index) => {
    if (text === null || text === texts[index - 1]) return [];
    const lasts = index === 0 || texts[index - 1] !== null || (texts[index + 1] ?? null) !== null;
    return [{ index, text: `${formatMetricName(name)}: ${text}`, lasts }];
  });
}

function moved(name, values) {
  if (name.startsWith("newly_")) {
    return values.flatMap((value, index) => (
      value?.length ? [{ index, text: `${formatMetricName(name)}: ${few("", value)}`, lasts: false }] : []
    ));
  }
  let before = [];
  return values.flatMap((value, index) => {
    const now = value ?? [];
    const came = now.filter((each) => !before.includes(each));
    const went = before.filter((each) => !now.includes(each));
    before = now;
    const words = [few("+", came), now.length ? few("−", went) : went.length ? "none" : ""].filter(Boolean).join(" ");
    return words ? [{ index, text: `${formatMetricName(name)}: ${words}`, lasts: false }] : [];
  });
}

function few(sign, clients) {
  if (!clients.length) return "";
  return `${sign} ${clients.length > MOST_NAMED ? clients.length : clients.join(", ")}`.trim();
}

// The cluster of each client, as the method told it last: `[cluster of client 0, ...]` of at least `least` clients; null
// where it told none.
export function clusters({ all }, least) {
  for (let index = all.length - 1; index >= 0; index -= 1) {
    const found = flat(all[index].method).find(([name, value]) => kind(name, value) === "clusters" && value.length >= Math.max(1, least));
    if (found) return found[1];
  }
  return null;
}
