// A row of the table of jobs.

import { actionButtons } from "../job_actions.js";
import { badge, element, replaceIfChanged, setText, show } from "../element.js";
import { makeSparkline } from "../sparkline.js";
import { algorithmOf, bytes, formatTime, cohortOf, count, dataOf, measure, modelOf, shortenMiddle, since, span, secondsOfWork } from "../formatting.js";
import { findKind, findMainMetric, METRICS } from "../metrics.js";

// A new column also needs its width in views.css, and its grid cell on narrow screens: the class is `c-` and its name.
export const COLUMNS = [
  ["select", "Select"], ["name", "Job"], ["state", "State"], ["algorithm", "Algorithm"], ["data", "Data and model"],
  ["clients", "Clients, cohort"], ["progress", "Rounds"], ["accuracy", "Score"], ["curve", "Curve"], ["bytes", "Traffic"],
  ["time", "Run time"], ["age", "Age"], ["actions", "Actions"],
];

const MOST_CHARACTERS = 64; // of a name
const MOST_LABELS = 6;

// A row that keeps its place and its focus: `update(job, curve, hidden)` changes only different cells. The label `hidden` is left out.
export function jobRow({ chosen, choose, done }) {
  const cells = Object.fromEntries(COLUMNS.map(([name, head]) => (
    [name, element("td", { role: "cell", class: `c-${name}`, data: { head } })]
  )));
  const row = element("tr", { role: "row" }, Object.values(cells));
  const tick = element("input", { type: "checkbox", on: { change: () => choose(row.dataset.job, tick.checked) } });
  const link = element("a", {});
  const id = element("span", { class: "soft id" });
  const data = element("span", {});
  const labels = element("span", { class: "labels" });
  const state = element("span", {});
  const waits = element("span", { class: "soft waits" });
  const bar = element("progress", {});
  const rounds = element("span", { class: "figure" });
  const reached = element("span", { class: "figure" });
  const whose = element("span", { class: "soft whose" });
  const curve = makeSparkline();
  const { buttons, update: updateButtons } = actionButtons(done);
  cells.select.append(tick);
  cells.name.append(link, id);
  cells.data.append(data, labels);
  cells.state.append(state, waits);
  cells.progress.append(bar, rounds);
  cells.accuracy.append(reached, whose);
  cells.curve.append(curve.picture);
  cells.actions.append(...buttons);

  function update(job, found, hidden) {
    row.dataset.job = job.id;
    tick.checked = chosen(job.id);
    tick.setAttribute("aria-label", `Select ${job.name}`);
    setText(link, shortenMiddle(job.name, MOST_CHARACTERS));
    link.title = job.name;
    link.href = `#/jobs/${job.id}`;
    setText(id, job.id.slice(0, 8));
    replaceIfChanged(labels, ...linkLabels(job, hidden));
    badge(state, job.state);
    state.title = job.message ?? "";
    setText(waits, job.waiting ?? "");
    waits.title = job.waiting ?? "";
    show(waits, Boolean(job.waiting));
    setText(cells.algorithm, algorithmOf(job.spec)); // with its curriculum, which job.algorithm leaves out
    setText(data, `${dataOf(job.spec)} · ${modelOf(job.spec)}`);
    setText(cells.clients, `${count(job.spec.clients.total)}, ${count(cohortOf(job.spec))}`);
    bar.max = job.rounds_total;
    bar.value = job.rounds_done;
    bar.setAttribute("aria-label", `Rounds of ${job.name}`);
    setText(rounds, `${job.rounds_done} / ${job.rounds_total}`);
    const metric = findMainMetric(job.last_metrics);
    const kind = findKind(metric);
    setText(reached, measure(metric, job.last_metrics[metric]));
    setText(whose, [kind === "accuracy" ? "" : METRICS[kind].title, metric.startsWith("personal_") ? "personal models" : "", metric.includes("_validation_") ? "validation" : ""].filter(Boolean).join(", "));
    show(whose, Boolean(whose.textContent));
    setText(cells.bytes, bytes(found?.bytes));
    const time = secondsOfWork(job);
    setText(cells.time, time === null ? "–" : span(Math.round(time)));
    setText(cells.age, since(job.created_at));
    cells.age.title = formatTime(job.created_at);
    if (found) curve.update(found, job.rounds_total, metric);
    updateButtons(job);
  }
  return { row, update };
}

const words = (text) => ` ${text.replace(/[\s,:=]+/g, " ").trim()} `;

// Links that filter the list by one label of the job. A label whose value is in the name of the job is left out.
function linkLabels({ name: jobName, labels }, hidden) {
  const said = words(jobName);
  const shown = Object.entries(labels).filter(([name, value]) => name !== hidden && !(value && said.includes(words(value))));
  const texts = shown.map(([name, value]) => (value ? `${name}=${value}` : name));
  const rest = texts.slice(MOST_LABELS);
  const links = texts.slice(0, MOST_LABELS).map((text) => element("a", { href: `#/jobs?${new URLSearchParams({ label: text })}`, title: `Show only jobs with the label ${text}` }, text));
  return rest.length ? [...links, element("span", { class: "soft", title: rest.join(", ") }, `+${rest.length}`)] : links;
}
