// The log, the spec and the downloads of one job.

import { button, element, labelled, say } from "../element.js";
import { get, jobPath, request } from "../service.js";
import { isAsking, notice, withToken } from "../session.js";
import { FINAL } from "../words.js";
import { yaml } from "../yaml.js";

const LINES = 300;
const EVERY = 3000;

export function papers(job, signal) {
  return [log(job, signal), spec(job, signal), downloads(job, signal)];
}

// Its last lines, asked for while they are to be seen.
function log(job, signal) {
  const text = element("pre", { class: "log", id: "log", tabindex: "0", "aria-label": "The last lines of the log" });
  const stay = element("input", { type: "checkbox", checked: true, name: "stay" });
  const details = element("details", { on: { toggle: () => details.open && read() } }, element("summary", {}, element("h2", {}, "Log")),
    labelled("Stay at the end", stay, { class: "labelled beside" }), text);
  let timer = null;

  async function read() {
    clearTimeout(timer);
    if (!details.open || signal.aborted) return;
    try {
      if (!document.hidden && !isAsking()) await fetchLines();
    } catch (error) {
      if (signal.aborted) return;
      if (!text.textContent) say(text, error.message);
    }
    if (!FINAL.has(job().state)) timer = setTimeout(read, EVERY);
  }

  async function fetchLines() {
    const response = await withToken(() => request(jobPath(job().id, `/logs?tail=${LINES}`), { signal }));
    say(text, await response.text() || "Nothing is written yet.");
    if (stay.checked) text.scrollTop = text.scrollHeight;
  }
  signal.addEventListener("abort", () => clearTimeout(timer));
  return element("section", {}, details);
}

function spec(job) {
  const text = element("pre", { id: "spec", tabindex: "0", "aria-label": "The spec as YAML" });
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(text.textContent).then(() => notice("The spec is copied"), () => notice("The browser did not let the page copy", true));
  }, { id: "copy-spec" });
  const details = element("details", { on: { toggle: () => say(text, yaml(job().spec)) } },
    element("summary", {}, element("h2", {}, "Spec")), copy, text);
  return element("section", {}, details);
}

const AS_CSV = { Accept: "text/csv" };

function downloads(job, signal) {
  const rounds = async () => {
    const all = [];
    for (let after = 0; after !== null;) {
      const page = await get(jobPath(job().id, `/rounds?after=${after}&limit=10000`), { signal });
      all.push(...page.rounds);
      after = page.next_after;
    }
    return new Blob(all.map((record) => `${JSON.stringify(record)}\n`));
  };
  const answer = async (path, headers) => (await request(jobPath(job().id, path), { signal, headers })).blob();
  const files = [
    ["Rounds as CSV", "rounds.csv", () => answer("/rounds", AS_CSV)],
    ["Rounds as JSON lines", "rounds.jsonl", rounds],
    ["Spec as YAML", "spec.yaml", async () => new Blob([yaml(job().spec)])],
    ["Log", "job.log", () => answer("/logs?tail=100000")],
  ];
  const buttons = files.map(([label, name, make]) => button(label, async () => {
    try {
      save(await withToken(make), `${job().name}-${job().id}-${name}`);
    } catch (error) {
      if (!signal.aborted) notice(error.message, true);
    }
  }, { data: { file: name } }));
  return element("section", { "aria-labelledby": "downloads-head" }, element("h2", { id: "downloads-head" }, "Downloads"),
    element("div", { class: "row", id: "downloads" }, buttons));
}

function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
