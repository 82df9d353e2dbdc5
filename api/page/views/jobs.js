// The list of jobs: a table with filters and pages, updated while jobs run.

import { button, element, setText, show } from "../element.js";
import { describeError, get } from "../service.js";
import { repeat } from "../session.js";
import { ACTIVE, STATES } from "../formatting.js";
import { findMainMetric, MAIN_METRICS } from "../metrics.js";
import { otherFilters, stateChips } from "./job_filters.js";
import { jobGroups } from "./job_groups.js";
import { COLUMNS, jobRow } from "./job_row.js";

const EVERY = 3000;
const PAGE = 50;
const MOST_ACTIVE = 500;
const MOST_CURVES = 100; // in one request

export const title = "Jobs";

export function open(root, { query, signal }) {
  // The address holds the selected jobs too, so that another filter, or a visit to a job, keeps the selection.
  const chosen = new Set((query.get("chosen") ?? "").split(",").filter(Boolean));
  const rows = new Map();
  const curves = new Map();
  const tokens = [null];
  let next = null;
  let asks = 0;
  let listed = [];

  const note = element("p", { id: "jobs-note", role: "status" }, "Loading …");
  const body = element("tbody", { role: "rowgroup" });
  const every = element("input", { type: "checkbox", name: "every", "aria-label": "Select all jobs on this page", on: { change: chooseEvery } });
  const table = element("table", { id: "job-table", role: "table", "aria-label": "Jobs" }, head(every), body);
  const compare = element("a", { class: "button", id: "compare-chosen" });
  const back = button("Previous", () => turn(-1), { id: "page-back" });
  const on = button("Next", () => turn(1), { id: "page-on" });
  const pages = element("p", { class: "pages" }, back, on);
  const chips = stateChips(query, (state) => set("pushState", "state", state));
  const groups = jobGroups(() => showJobs(listed), signal);
  // The address holds the filters, so that a view of the list can be linked and reloaded. Each whole value is an entry of the
  // browser's history; the letters while the reader types are not.
  const filters = otherFilters(query, {
    signal, type: (name, value) => set("replaceState", name, value), change: (name, value) => set("pushState", name, value),
  });
  root.append(
    element("div", { class: "title" }, element("h1", {}, "Jobs"), compare, element("a", { class: "button main", href: "#/new" }, "New job")),
    filters, chips.root, note, element("div", { class: "wide" }, table), pages,
  );

  function set(how, name, value) {
    if ((query.get(name) ?? "") === value) return;
    if (value) query.set(name, value);
    else query.delete(name);
    history[how](null, "", address(query));
    tokens.length = 1;
    refresh().catch(() => {});
  }

  // A button ignores clicks until its promise ends, so that a page is turned once.
  async function turn(step) {
    const [before, shown] = [[...tokens], listed];
    if (step < 0 && tokens.length > 1) tokens.pop();
    else if (step > 0) tokens.push(next);
    // If the other page did not come, the list of pages is that of the page which stays.
    await refresh().then(() => window.scrollTo(0, 0), () => listed === shown && tokens.splice(0, tokens.length, ...before));
  }

  function choose(id, wanted) {
    if (wanted) chosen.add(id);
    else chosen.delete(id);
    if (chosen.size) query.set("chosen", [...chosen].join(","));
    else query.delete("chosen");
    history.replaceState(null, "", address(query));
    showChosen();
  }

  function chooseEvery() {
    const wanted = every.checked; // `choose` changes the checkbox
    visible().forEach(([id, { row }]) => {
      choose(id, wanted);
      row.querySelector(".c-select input").checked = wanted;
    });
  }

  const visible = () => [...rows].filter(([, { row }]) => !row.hidden);

  function showChosen() {
    show(compare, chosen.size > 0);
    setText(compare, `Compare ${chosen.size}`);
    compare.href = `#/compare?jobs=${[...chosen].join(",")}`;
    const all = visible();
    const here = all.filter(([id]) => chosen.has(id)).length;
    every.checked = here > 0 && here === all.length;
    every.indeterminate = here > 0 && here < all.length;
  }

  // An answer to an older request is dropped: it may belong to another search.
  async function refresh() {
    const ask = asks += 1;
    try {
      const { jobs, counts, next_page_token: token } = await readPage();
      if (ask !== asks) return;
      next = token;
      listed = jobs;
      chips.update(counts);
      showJobs(jobs);
      await Promise.all([freshCurves(jobs), groups.read(jobs)]);
      if (ask === asks) showJobs(jobs);
    } catch (error) {
      if (ask === asks && error.status && error.status !== 401) {
        setText(note, describeError(error));
        show(note, true);
      }
      throw error;
    }
  }

  // In the default order of all states, active jobs stand at the top of the first page, however old they are. The pages then
  // have the other jobs.
  async function readPage() {
    const asked = new URLSearchParams([["limit", PAGE], ...listFilters(query)]);
    const token = tokens.at(-1);
    if (token) asked.set("page_token", token);
    const isSplit = !query.get("state") && (query.get("order_by") || "-created_at") === "-created_at";
    if (isSplit) STATES.filter((state) => !ACTIVE.has(state)).forEach((state) => asked.append("state", state));
    const page = await get(`/jobs?${asked}`, { signal });
    if (!isSplit || token || ![...ACTIVE].some((state) => page.counts[state])) return page;
    const states = [...ACTIVE].map((state) => ["state", state]);
    const top = await get(`/jobs?${new URLSearchParams([["limit", MOST_ACTIVE], ...states, ...listFilters(query)])}`, { signal });
    const ids = new Set(top.jobs.map(({ id }) => id)); // a job may have become active between the two answers
    return { ...page, jobs: [...top.jobs, ...page.jobs.filter(({ id }) => !ids.has(id))] };
  }

  // Reads only the curves of jobs with new rounds.
  async function freshCurves(jobs) {
    const due = jobs.filter((job) => job.rounds_done && curves.get(job.id)?.done !== job.rounds_done);
    if (!due.length) return;
    await Promise.all(MAIN_METRICS.map((metric) => fetchCurves(metric, due.filter((job) => findMainMetric(job.last_metrics) === metric))));
  }

  async function fetchCurves(metric, all) {
    const jobs = all.slice(0, MOST_CURVES); // the next turn reads the others
    if (!jobs.length) return;
    const asked = new URLSearchParams([["metric", metric], ...jobs.map((job) => ["job", job.id])]);
    const answer = await get(`/curves?${asked}`, { signal });
    answer.curves.forEach((curve) => {
      const job = jobs.find(({ id }) => id === curve.job_id);
      curves.set(curve.job_id, { ...curve, done: job.rounds_done });
    });
  }

  function showJobs(jobs) {
    const gone = new Set(rows.keys());
    const order = groups.arrange(jobs).flatMap(({ heading, isFolded, jobs: members }) => {
      const shown = members.map((job) => {
        gone.delete(job.id);
        if (!rows.has(job.id)) rows.set(job.id, jobRow({ chosen: (id) => chosen.has(id), choose, done }));
        const { row, update } = rows.get(job.id);
        update(job, curves.get(job.id), heading ? "group" : null);
        row.hidden = isFolded;
        return row;
      });
      return heading ? [heading, ...shown] : shown;
    });
    order.forEach((row, index) => {
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
    });
    [...body.children].slice(order.length).forEach((row) => row.remove());
    gone.forEach((id) => rows.delete(id));
    showChosen();
    setText(note, listFilters(query).length ? "No job matches these filters." : 'No jobs yet. Create one with "New job", or in a terminal: fedsim submit demo');
    show(note, !jobs.length);
    show(table, jobs.length > 0);
    show(pages, tokens.length > 1 || next !== null);
    back.disabled = tokens.length < 2;
    on.disabled = next === null;
  }

  const done = (name, job) => {
    if (name === "delete") choose(job.id, false);
    refresh().catch(() => {});
  };
  repeat("list", () => EVERY, signal, refresh);
}

// The filters that have a value.
const listFilters = (query) => [...query].filter(([name, value]) => value && name !== "chosen");
const address = (query) => `#/jobs${query.size ? `?${query.toString().replaceAll("%2C", ",")}` : ""}`;

function head(every) {
  const cells = COLUMNS.map(([name, text]) => {
    const words = name === "select" ? every : name === "actions" ? element("span", { class: "for-readers" }, text) : text;
    return element("th", { role: "columnheader", scope: "col", class: `c-${name}` }, words);
  });
  return element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, cells));
}
