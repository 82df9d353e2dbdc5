// Compares jobs: their curves, means over seeds, and the rounds, traffic and time to a target.

import { axis, Chart, MOST_POINTS } from "../chart.js";
import { curveColour, dash, faint } from "../colours.js";
import { copy } from "../clipboard.js";
import { save } from "../download.js";
import { button, element, offer, wrapWithLabel, replaceIfChanged, setText, select, show } from "../element.js";
import { AXES, listAxes } from "../records.js";
import { describeError, get, isTemporary, jobPath, request } from "../service.js";
import { notice, repeat, withToken } from "../session.js";
import { FINAL, formatMetricName } from "../formatting.js";
import { plainName } from "../job_names.js";
import { isShare } from "../metrics.js";
import { claimsCard, findTable } from "./claims.js";
import { comparisonTable, differenceTable } from "./compare_table.js";
import { plainText } from "./method_changes.js";
import { parallelCoordinates } from "./parallel.js";
import { picker } from "./picker.js";

const EVERY = 3000;
const MOST_POLLED_JOBS = 20; // more jobs are polled less often, because the service limits the number of requests
const AGAIN = 10; // turns after which ended jobs are read again: somebody may have resumed them
const LAST = 5; // scores in the mean of the last rounds
const RESETS = { metric: { setting: "chosen", value: null }, against: { setting: "against", value: "" } }; // by the field that is refused
const TABLES = [["CSV", "csv", "text/csv"], ["Markdown", "md", "text/markdown"], ["LaTeX", "tex", "application/x-latex"]];

export const title = "Compare";

export function open(root, { query, signal }) {
  new Comparison(root, query, signal).start();
}

// The service computes every figure (`GET /comparison`); the view asks again when a job has new rounds or another state.
class Comparison {
  constructor(root, query, signal) {
    Object.assign(this, { root, signal, jobs: new Map(), gone: new Set(), turns: 0, due: [], found: null, seen: "", asks: 0, judgedFor: "" });
    this.ids = [...new Set((query.get("jobs") ?? "").split(",").filter(Boolean))];
    this.chosen = query.get("metric"); // by the reader; null for the default metric
    this.along = AXES[query.get("along")] ? query.get("along") : "rounds";
    this.target = query.get("target") ?? "";
    this.last = Number(query.get("last")) || LAST;
    this.against = query.get("against") ?? "";
    this.together = query.get("seeds") !== "0";
    this.build(query);
  }

  build() {
    const draw = () => this.draw();
    this.note = element("p", { class: "message", id: "compare-note" }, "");
    this.picker = picker({ chosen: () => this.ids, signal: this.signal, change: (ids) => this.take(ids) });
    this.metrics = select([], "", (value) => this.set({ chosen: value, target: "" }), { name: "metric" });
    this.baselines = select([], "", (value) => this.set({ against: value }), { name: "against" });
    this.axes = select([], this.along, (value) => this.set({ along: value }), { name: "along" });
    this.aim = element("input", { name: "target", size: 8, value: this.target, autocomplete: "off", inputmode: "decimal", "aria-describedby": "target-fault",
      on: { change: () => this.set({ target: this.aim.value.trim() }) } });
    this.fault = element("p", { class: "fault", id: "target-fault", role: "status" });
    const last = element("input", { type: "number", name: "last", min: 1, value: this.last, on: { change: () => this.set({ last: Math.max(1, Math.round(Number(last.value)) || LAST) }) } });
    const seeds = element("input", { type: "checkbox", name: "seeds", checked: this.together, on: { change: () => this.set({ together: seeds.checked }) } });
    const link = button("Copy link", () => copy(location.href, "The link is copied"));
    this.picture = element("div", { class: "chart", id: "compare-chart", role: "img", "aria-labelledby": "compare-head compare-words" });
    this.words = element("p", { class: "soft", id: "compare-words" });
    this.table = element("div", { class: "wide", id: "compare-table", tabindex: "0", role: "region", "aria-label": "Comparison table" });
    this.charted = element("section", { class: "curves", "aria-labelledby": "compare-head" },
      element("div", { class: "title" }, element("h2", { id: "compare-head" }, "Curves"), element("div", { class: "controls" },
        wrapWithLabel("Metric", this.metrics), wrapWithLabel("Horizontal axis", this.axes), wrapWithLabel("Target", this.aim),
        wrapWithLabel("Mean over seeds", seeds, { class: "labelled beside" }),
        element("div", { class: "row" }, ["svg", "png"].map((format) => button(`Save ${format.toUpperCase()}`, () => this.savePicture(format),
          { data: { picture: format } })), button("Save PDF", () => this.saveFile("pdf", "application/pdf"), { data: { picture: "pdf" } })))),
      this.fault, this.picture, this.words);
    this.parallel = parallelCoordinates(this.signal);
    this.remarks = element("div", { class: "soft", id: "compare-remarks" });
    this.figures = element("section", { "aria-labelledby": "figures-head" }, element("div", { class: "title" },
      element("h2", { id: "figures-head" }, "Figures"), element("div", { class: "controls" },
        wrapWithLabel("Baseline", this.baselines), wrapWithLabel("Last rounds", last),
        element("div", { class: "row" }, TABLES.map(([name, ending, type]) => button(`Save ${name}`, () => this.saveFile(ending, type), { data: { table: ending } }))))), this.table);
    this.differences = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of differences" });
    this.different = element("section", { "aria-labelledby": "differences-head" }, element("h2", { id: "differences-head" }, "What differs"), this.differences);
    this.judged = element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of claims" });
    this.claims = element("section", { id: "compare-claims", "aria-labelledby": "claims-head" }, element("h2", { id: "claims-head" }, "Claims of the paper"), this.judged);
    show(this.claims, false);
    this.root.append(element("div", { class: "title" }, element("h1", {}, "Compare"), link), this.picker.root, this.note, this.claims, this.charted, this.parallel.root, this.figures, this.remarks, this.different);
    this.chart = new Chart(this.picture, this.words, () => this.drawCurves(), this.signal);
    draw();
  }

  // The address holds all settings, so that a link opens the same view.
  set(changes) {
    Object.assign(this, changes);
    history.replaceState(null, "", this.address());
    this.compare().catch(() => {}); // `repeat` asks again soon and reports errors
  }

  // Other jobs are a new entry in the browser's history. The view keeps its data, and the search stays open.
  take(ids) {
    this.ids = ids;
    this.against = "";
    history.pushState(null, "", this.address());
    this.refresh().catch(() => {});
  }

  settings() {
    const given = { metric: this.chosen, target: this.target, against: this.against, last: this.last === LAST ? "" : this.last };
    return Object.entries(given).filter(([, value]) => value);
  }

  address() {
    const asked = new URLSearchParams([["jobs", this.ids.join(",")], ["along", this.along], ...this.settings()]);
    if (!this.together) asked.set("seeds", "0");
    return `#/compare?${asked.toString().replaceAll("%2C", ",")}`;
  }

  // The request for the figures of the jobs that exist.
  get question() {
    const ids = this.ids.filter((id) => this.jobs.has(id) && !this.gone.has(id));
    const settings = this.settings().filter(([name]) => name !== "target" || this.hasTarget);
    return ids.length ? `/comparison?${new URLSearchParams([...ids.map((id) => ["job", id]), ...settings, ["along", this.along], ["together", this.together]])}` : "";
  }

  get hasTarget() {
    return Boolean(this.target) && Number.isFinite(Number(this.target));
  }

  start() {
    if (this.ids.length) setText(this.note, "Loading …");
    repeat("compare", () => EVERY * Math.max(1, Math.ceil(this.due.length / MOST_POLLED_JOBS)), this.signal, () => this.refresh());
  }

  async refresh() {
    const all = this.turns % AGAIN === 0;
    this.turns += 1;
    this.due = this.ids.filter((id) => !this.gone.has(id) && (all || !FINAL.has(this.jobs.get(id)?.state)));
    const answers = await Promise.allSettled(this.due.map((id) => this.fetch(id)));
    if (this.signal.aborted) return;
    await this.compare(true);
    if (!this.signal.aborted) await this.judge();
    const refused = answers.find(({ status }) => status === "rejected");
    if (refused) throw refused.reason;
  }

  async fetch(id) {
    try {
      this.jobs.set(id, await get(jobPath(id), { signal: this.signal }));
    } catch (error) {
      if (error.status !== 404) throw error;
      this.gone.add(id);
    }
  }

  // Asks for the figures, and draws them; with `onlyNew` only if a job or a setting has changed.
  async compare(onlyNew = false) {
    const { question } = this;
    const seen = question + this.ids.map((id) => `${this.jobs.get(id)?.state} ${this.jobs.get(id)?.rounds_done}`).join();
    if (onlyNew && seen === this.seen) return;
    const ask = this.asks += 1;
    try {
      const found = question ? await withToken(() => get(question, { signal: this.signal })) : null;
      if (ask !== this.asks) return; // an answer to an older question
      Object.assign(this, { found, seen });
    } catch (error) {
      if (ask !== this.asks) return;
      if (isTemporary(error) || error.status === 401) throw error;
      const fault = error.errors.find(({ path }) => path in RESETS && this[RESETS[path].setting]);
      if (!fault) {
        // The same question would be refused again: it is asked only when a job or a setting changes.
        Object.assign(this, { found: null, seen });
        show(this.claims, false);
        this.draw();
        setText(this.note, describeError(error));
        show(this.note, true);
        return;
      }
      // Other jobs may lack the metric or the baseline of the address.
      notice(`${fault.path} ${JSON.stringify(fault.value)} ${fault.message}`, true);
      this.set({ [RESETS[fault.path].setting]: RESETS[fault.path].value });
      return;
    }
    this.draw();
  }

  // Jobs that are runs of a result table have claims: of all jobs of that table, not of the chosen ones alone. The service is asked
  // when other jobs are chosen or one of them succeeds.
  async judge() {
    const jobs = this.ids.filter((id) => this.jobs.has(id)).map((id) => this.jobs.get(id));
    const labels = findTable(jobs);
    const due = labels ? `${labels}\n${jobs.filter(({ state }) => state === "SUCCEEDED").map(({ id }) => id)}` : "";
    if (due === this.judgedFor) return;
    this.judgedFor = due;
    show(this.claims, false);
    if (!labels) return;
    try {
      const judged = await withToken(() => get(`/claims?${new URLSearchParams(labels.map((label) => ["label", label]))}`, { signal: this.signal }));
      if (due !== this.judgedFor || !judged.claims.length) return;
      replaceIfChanged(this.judged, claimsCard(judged));
    } catch (error) {
      if (due !== this.judgedFor || this.signal.aborted) return;
      if (isTemporary(error)) this.judgedFor = null; // the next turn asks again
      replaceIfChanged(this.judged, element("p", { class: "message" }, `The claims cannot be judged: ${describeError(error)}`));
    }
    show(this.claims, true);
  }

  draw() {
    const { found } = this;
    const lost = this.ids.filter((id) => this.gone.has(id));
    setText(this.note, !this.ids.length ? "Select jobs to compare." : lost.length ? `No such job: ${lost.join(", ")}` : "");
    show(this.note, Boolean(this.note.textContent));
    const groups = found?.groups ?? [];
    // A job without figures is listed too: it can be the one that has to be removed.
    const grouped = new Set(groups.flatMap(({ members }) => members));
    const others = this.ids.filter((id) => !grouped.has(id)).map((id) => this.jobs.get(id) ?? { id, name: id });
    this.picker.show([
      ...groups.map(({ name, members }) => ({ name, members: members.map((id) => ({ job: this.jobs.get(id) })) })),
      ...others.map((job) => ({ name: plainName(job), members: [{ job }] })),
    ]);
    this.groups = groups.filter(({ runs }) => runs.length);
    [this.charted, this.figures].forEach((section) => show(section, this.groups.length > 0));
    if (!found) {
      show(this.parallel.root, false);
      show(this.different, false);
      this.remarks.replaceChildren();
      return;
    }
    offer(this.metrics, [...new Set([found.metric, ...found.metrics])].map((name) => [name, formatMetricName(name)]), found.metric);
    const hasDevices = AXES[this.along].needsDevices || this.groups.some(({ clock }) => clock);
    offer(this.axes, listAxes(hasDevices).map(([key, { name }]) => [key, name]), this.along);
    offer(this.baselines, this.groups.map(({ name }) => [name, name]), found.baseline);
    this.tellTarget(Boolean(this.target) && !this.hasTarget);
    if (!this.hasTarget) this.aim.placeholder = found.target === null ? "" : found.target.toFixed(4);
    replaceIfChanged(this.table, comparisonTable(this.groups, found, this.jobs));
    replaceIfChanged(this.remarks, found.notes.map((text) => element("p", {}, text)));
    const differing = differenceTable(groups, found.differences);
    show(this.different, Boolean(differing));
    if (differing) replaceIfChanged(this.differences, differing);
    this.parallel.update(found, this.jobs);
    if (this.groups.length) this.chart.draw();
  }

  async savePicture(format) {
    try {
      save(await this.chart.export(format), `comparison.${format}`);
    } catch (error) {
      notice(`cannot save the picture: ${error.message}`, true);
    }
  }

  // The table, or the figure, as the service writes it.
  async saveFile(ending, type) {
    try {
      const answer = await withToken(() => request(this.question, { headers: { Accept: type }, signal: this.signal }));
      save(new Blob([await answer.arrayBuffer()], { type }), `comparison.${ending}`);
    } catch (error) {
      notice(`cannot save the file: ${error.message}`, true);
    }
  }

  tellTarget(isWrong) {
    if (isWrong) this.aim.setAttribute("aria-invalid", "true");
    else this.aim.removeAttribute("aria-invalid");
    setText(this.fault, isWrong ? `The target ${JSON.stringify(this.target)} is not a number. ${this.found.target === null ? "No target is used." : "The worst final value is used instead."}` : "");
  }

  drawCurves() {
    const { metric, lower_is_better: isLowerBetter } = this.found;
    const traces = this.groups.flatMap((group, index) => curve(group, index));
    const layout = {
      showlegend: true, margin: { l: 48, r: 14, t: 36, b: 40 },
      xaxis: axis(AXES[this.along].title, { rangemode: "tozero", ...AXES[this.along].ticks }),
      yaxis: axis("", isShare(metric) ? { tickformat: ".2~f" } : { tickformat: ".3~s" }),
    };
    const better = isLowerBetter ? "lower" : "higher";
    const bands = this.groups.some(({ curve: { deviation } }) => deviation.length) ? " Each band is one standard deviation over the seeds." : "";
    return { traces, layout, words: `${formatMetricName(metric)} of ${this.groups.map(({ name, note }) => name + note).join("; ")}: ${better} is better.${bands}` };
  }
}

function curve({ name, note, curve: { x, mean, deviation } }, index) {
  const colour = curveColour(index);
  const legendgroup = name + note;
  const trace = {
    name: plainText(name) + note, x, y: mean, type: "scatter", marker: { size: 5 },
    mode: x.length > MOST_POINTS ? "lines" : "lines+markers", line: { color: colour, width: 2, dash: dash(index) },
    legendgroup, hovertemplate: "%{y:.4f}",
  };
  if (!deviation.length) return [trace];
  const up = mean.map((value, place) => value + deviation[place]);
  const down = mean.map((value, place) => value - deviation[place]);
  return [trace, {
    x: [...x, ...[...x].reverse()], y: [...up, ...down.reverse()], type: "scatter", mode: "lines", fill: "toself", line: { width: 0 },
    fillcolor: faint(colour, 0.18), hoverinfo: "skip", showlegend: false, legendgroup,
  }];
}
