// JSON with exact seeds. JavaScript rounds integers from 2^53 on, so such a seed becomes a BigInt.

const SEED = /"seed":\s*(\d{16,})(?=\s*[,}])/g; // inside a JSON string the quotes would be escaped
const BIG = /^\0\d+$/;

// An integer of any length, from its digits.
export function whole(digits) {
  const number = Number(digits);
  return Number.isSafeInteger(number) ? number : BigInt(digits);
}

export function parse(text) {
  const marked = text.replace(SEED, '"seed":"\\u0000$1"');
  if (marked === text) return JSON.parse(text);
  return JSON.parse(marked, (key, value) => (key === "seed" && BIG.test(value) ? whole(value.slice(1)) : value));
}

export function stringify(data) {
  const mark = (_, value) => (typeof value === "bigint" ? `\0${value}` : value);
  return JSON.stringify(data, mark)?.replace(/"\\u0000(\d+)"/g, "$1");
}
