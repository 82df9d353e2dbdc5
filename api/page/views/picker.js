// Selects jobs to compare: the selected jobs, folded, and a search. `chosen()` returns their ids; `change(ids)` sets them.

import { plainName } from "../job_names.js";
import { button, element, replaceIfChanged, setText } from "../element.js";
import { get } from "../service.js";
import { withToken } from "../session.js";
import { algorithmOf, countOf } from "../formatting.js";

const PAUSE = 250;
const MOST_FOUND = 12;

export function picker({ chosen, change, signal }) {
  const field = element("input", { type: "search", name: "find", id: "find", placeholder: "name, id, algorithm", autocomplete: "off", on: { input: later } });
  const list = element("ul", { class: "found", id: "found", "aria-label": "Jobs to add" });
  const taken = element("ul", { class: "chips", id: "chosen", "aria-label": "Compared jobs" });
  const number = element("summary", { id: "chosen-number" }, "");
  const folded = element("details", { hidden: true }, number, taken);
  let timer = null;
  let asks = 0;

  function later() {
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE);
  }

  // An answer to an older search is dropped.
  async function search() {
    const ask = asks += 1;
    const asked = new URLSearchParams({ limit: MOST_FOUND, ...(field.value.trim() ? { search: field.value.trim() } : {}) });
    try {
      const { jobs } = await withToken(() => get(`/jobs?${asked}`, { signal }));
      if (ask !== asks) return;
      list.replaceChildren(...jobs.filter((job) => !chosen().includes(job.id)).map((job) => element("li", {},
        button(`+ ${plainName(job)}`, (event) => add(event.target.closest("li"), job.id), { class: "quiet", data: { add: job.id } }),
        element("span", { class: "soft" }, `${algorithmOf(job.spec)}, seed ${job.spec.seed}, ${job.state.toLowerCase()}`))));
      if (!jobs.length) list.replaceChildren(element("li", { class: "soft" }, "No job matches."));
    } catch (error) {
      if (ask === asks && !signal.aborted) list.replaceChildren(element("li", { class: "soft" }, error.message));
    }
  }

  // The focus moves to the next job of the list, for readers who use the keyboard.
  function add(line, id) {
    (line.nextElementSibling ?? line.previousElementSibling)?.querySelector("button")?.focus();
    line.remove();
    change([...chosen(), id]);
  }

  function show(groups) {
    setText(number, describeNumber(groups));
    folded.hidden = !groups.length;
    replaceIfChanged(taken, ...groups.flatMap(({ members, name }) => members.map(({ job }) => chip(job, members.length > 1 ? `${name}, seed ${job.spec.seed}` : name))));
  }

  const chip = (job, name) => element("li", {}, element("a", { href: `#/jobs/${job.id}`, title: job.name }, name),
    button("×", () => change(chosen().filter((id) => id !== job.id)), { class: "quiet", "aria-label": `Remove ${name}` }));

  const details = element("details", { open: chosen().length === 0, on: { toggle: () => details.open && search() } },
    element("summary", {}, "Add jobs"), element("label", { for: "find", class: "for-readers" }, "Find jobs"), field, list);
  signal.addEventListener("abort", () => clearTimeout(timer));
  return { root: element("section", { "aria-label": "Jobs", class: "picker" }, folded, details), show };
}

// "12 jobs: 3 groups of 4 seeds".
function describeNumber(groups) {
  const sizes = groups.map(({ members }) => members.length);
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const jobs = countOf(sizes.reduce((sum, size) => sum + size, 0), "job");
  if (most < 2) return jobs;
  return `${jobs}: ${countOf(groups.length, "group")} of ${least < most ? `${least} to ` : ""}${most} seeds`;
}
