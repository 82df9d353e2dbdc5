// JSON in which seeds stay exact: JavaScript rounds whole numbers from 2 to the power of 53 on, so that such a seed is a BigInt
// here, and two of them are two.

const SEED = /"seed":\s*(\d{16,})(?=\s*[,}])/g; // within a text of JSON its quotes would be escaped
const BIG = /^\0\d+$/;

// A whole number of any length, written in digits.
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
