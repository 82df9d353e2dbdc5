// Curves and changes that the algorithm of a job reports. The service names them and decides how they are drawn
// (`GET /jobs/ID/method-curves`); this module puts them beside the records of the page.

export const NOTHING_REPORTED = { rounds: [], curves: [], changes: [], values: [], clusters: null };

// `{ key: { name, lines: [{ name, read }] } }`; `read` takes a record and returns its value.
export function listMethodCurves({ method }) {
  const places = new Map(method.rounds.map((round, place) => [round, place]));
  const line = ({ title, values }) => ({ name: title, read: ({ round }) => values[places.get(round)] });
  return Object.fromEntries(method.curves.map(({ name, title, lines }) => [`method.${name}`, { name: title, lines: lines.map(line) }]));
}

// `[{ index, text, lasting }]`: the place of the record, all changes of that round, and the part that stays true later.
export function listMethodChanges({ all, method }) {
  const places = new Map(all.map(({ round }, index) => [round, index]));
  return method.changes.filter(({ round }) => places.has(round)).map(({ round, text, lasting }) => ({ index: places.get(round), text, lasting }));
}
