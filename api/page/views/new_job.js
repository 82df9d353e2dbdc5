// The view for a new job, or for the jobs of several seeds and varied fields: a form made from the JSON schema of the spec, and
// the spec as YAML. The service checks the spec after every change.

import { copy } from "../clipboard.js";
import { Draft } from "../draft.js";
import { button, element, setText, select } from "../element.js";
import { countOf } from "../formatting.js";
import { describeError, get, isTemporary, jobPath, LONG, post } from "../service.js";
import { confirm, setConnection, notice, withToken } from "../session.js";
import { parseInput } from "../schema.js";
import { Submission } from "../submission.js";
import { countRuns, describeCount, listCells, listRuns, makeSpec, parseSeeds, sweepFile } from "../sweep.js";
import { runWhileVisible } from "../waiting.js";
import { yaml } from "../yaml.js";
import { showFaults } from "./faults.js";
import { fields, makeLabelledField } from "./fields.js";
import { planner } from "./plan.js";
import { findCellErrors, findValueErrors, listOtherValues, MOST_CHECKED } from "./value_checks.js";
import { vary } from "./vary.js";

const PAUSE = 350;
const AGAIN = 3000; // ms after the service did not answer, or was busy
const [MANY, MOST] = [50, 200]; // jobs: more than MANY are confirmed, more than MOST are refused
const VALID = "Each value is valid. Submit checks every combination.";
const KINDS = ["algorithms", "models", "datasets", "partitions", "samplers", "optimizers", "schedules", "attacks", "aggregators", "compressors", "fleets", "policies", "presets"];

export const title = "New job";

export async function open(root, { query, signal }) {
  const note = element("p", { class: "message", id: "new-note" }, "Loading the names that a spec can use …");
  root.append(element("h1", {}, "New job"), note);
  try {
    const [schema, ...lists] = await withToken(() => Promise.all(["schema", ...KINDS].map((kind) => get(`/${kind}`, { signal }))));
    const catalogue = Object.fromEntries(KINDS.map((kind, index) => [kind, lists[index]]));
    setConnection("catalogue", true);
    const form = new NewJob(root, schema, catalogue, signal);
    note.remove();
    await form.begin(query);
  } catch (error) {
    if (signal.aborted) return;
    setText(note, error.message);
    note.classList.add("bad");
    root.append(note);
    if (!isTemporary(error)) return;
    setConnection("catalogue", false);
    setTimeout(() => signal.aborted || (root.replaceChildren(), open(root, { query, signal })), AGAIN);
  }
}

class NewJob {
  constructor(root, schema, catalogue, signal) {
    Object.assign(this, { schema, catalogue, signal, draft: new Draft(), asked: 0, last: Promise.resolve(), given: {}, submission: new Submission(signal) });
    const presets = catalogue.presets.map(({ name, summary }) => [name, `${name}: ${summary.slice(0, 70)}`]);
    this.preset = select([["", "none"], ...presets], "", (name) => this.choosePreset(name), { name: "preset", id: "preset" });
    this.priority = element("input", { name: "priority", value: "0", inputmode: "numeric", on: { input: () => this.count() } });
    this.labels = element("input", { name: "labels", placeholder: "group=mine, note=first", autocomplete: "off", on: { input: () => this.count() } });
    this.form = element("div", { id: "spec-form" });
    this.text = element("textarea", { id: "yaml", rows: 18, spellcheck: "false", "aria-label": "The spec as YAML",
      on: { input: () => this.later(true) } });
    this.verdict = element("span", { id: "verdict", role: "status" }, "");
    this.number = element("strong", { id: "job-count" }, "");
    this.vary = vary(() => {
      this.count();
      this.later(this.fromText);
    });
    this.plan = planner(() => this.currentSpec, () => countRuns(this.grid), signal);
    this.submit = button("Submit", () => this.send(), { id: "submit", class: "main" });
    const copying = button("Copy", () => copy(this.text.value, "The YAML is copied", this.text), { id: "copy-yaml" });
    this.others = element("ul", { id: "other-faults", class: "fault" });
    this.left = element("div", {}, element("section", { class: "row" }, makeLabelledField("preset", "Start from a preset", this.preset),
      makeLabelledField("priority", "Priority", this.priority), makeLabelledField("labels", "Labels", this.labels)), this.vary.root, this.form);
    root.append(
      element("div", { class: "new-split" }, this.left, element("div", { class: "beside-form" },
        element("section", { "aria-labelledby": "yaml-head" },
          element("div", { class: "title" }, element("h2", { id: "yaml-head" }, "Spec"), copying), this.others, this.text), this.plan.section)),
      element("div", { class: "submit-bar", role: "region", "aria-label": "Submission" }, this.submit,
        element("p", {}, this.number, " ", this.verdict), element("p", { class: "plan-line" }, this.plan.start, this.plan.summary)));
    signal.addEventListener("abort", () => clearTimeout(this.timer));
  }

  async begin(query) {
    if (query.get("from")) {
      const job = await withToken(() => get(jobPath(query.get("from")), { signal: this.signal }));
      const { name, ...nameless } = job.spec;
      // The name and the labels of a run of a sweep say what its fields were, and the reader will change some of them.
      const isOfSweep = "group" in job.labels && "seed" in job.labels;
      const labels = isOfSweep ? {} : job.labels;
      // A name that repeats the algorithm's name is dropped: another algorithm gives another name.
      this.draft = new Draft(isOfSweep || name === job.spec.algorithm.name ? nameless : job.spec);
      this.given = { labels, text: Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(", ") };
      this.labels.value = this.given.text;
      this.priority.value = job.priority;
      return this.redraw();
    }
    this.preset.value = query.get("preset") ?? (this.catalogue.presets.some(({ name }) => name === "demo") ? "demo" : "");
    return this.loadPreset(this.preset.value);
  }

  async loadPreset(name) {
    const preset = this.catalogue.presets.find((each) => each.name === name);
    const found = preset && await this.look(preset.text);
    if (this.preset.value !== name) return; // the reader has chosen another preset meanwhile
    this.draft = new Draft(found?.data ?? undefined);
    this.loaded = name;
    this.redraw();
  }

  async choosePreset(name) {
    try {
      await this.loadPreset(name);
    } catch (error) {
      if (this.signal.aborted || this.preset.value !== name) return;
      notice(error.message, true);
      this.preset.value = this.loaded ?? "";
    }
  }

  // Draws the fields again, and keeps the focus.
  redraw(keepText = false) {
    this.begun = true;
    const held = document.activeElement?.name;
    const changed = (redraw) => {
      if (redraw) this.redraw();
      else this.refresh();
    };
    this.form.replaceChildren(...fields({ schema: this.schema, catalogue: this.catalogue, draft: this.draft, changed }));
    if (held) this.form.querySelector(`[name="${CSS.escape(held)}"]`)?.focus();
    const names = [...this.form.querySelectorAll("[name]:not([type=checkbox])")].filter(({ name }) => !["name", "seed"].includes(name));
    this.vary.update(names.map(({ name, dataset }) => [name, dataset.type]));
    this.refresh(keepText);
  }

  refresh(keepText = false) {
    if (!keepText) this.text.value = yaml(this.draft.data);
    this.count();
    this.later(false);
  }

  // The last change, in the text or in a field, decides which spec is checked, planned and submitted.
  later(fromText) {
    clearTimeout(this.timer);
    this.fromText = fromText;
    this.asked += 1;
    this.timer = setTimeout(() => this.checkAll(), PAUSE);
  }

  // Of several jobs the first one.
  get currentSpec() {
    if (this.fromText) return this.text.value;
    return makeSpec(this.draft.data, listCells(this.grid.axes)[0]);
  }

  // The axes and the seeds, from which the jobs are made.
  get grid() {
    return { axes: this.vary.axes(), seeds: this.draft.seeds ? parseSeeds(this.draft.seeds) : [this.draft.get("seed") ?? 0] };
  }

  // Everything about the jobs; without axes and with one seed, the job of the form.
  get plannedJobs() {
    const { data } = this.draft;
    // The labels of a cloned job may contain commas.
    const labels = this.labels.value === this.given.text ? this.given.labels : parseLabels(this.labels.value);
    const algorithm = this.draft.choice("algorithm").name;
    return { ...this.grid, data, labels, priority: parseInput(this.priority.value, "integer") ?? 0, group: labels.group || String(data.name ?? algorithm) };
  }

  // Says how many jobs will be submitted.
  count() {
    const planned = this.plannedJobs;
    const isSweep = planned.axes.length > 0 || planned.seeds.length > 1;
    setText(this.number, describeCount(planned));
    this.vary.show(isSweep ? planned.group : "", isSweep ? sweepFile(planned) : "");
    this.plan.update();
  }

  look(spec) {
    return withToken(() => post("/check", spec, { signal: this.signal, seconds: LONG }));
  }

  // Sends a check only after the answer to the check before, so that slow checks do not pile up. Of several waiting checks
  // only the last is sent. An answer is dropped if the spec has changed meanwhile.
  check() {
    const turn = this.asked += 1;
    this.last = this.last.then(() => (turn === this.asked && !this.signal.aborted ? this.ask(turn) : null));
    return this.last;
  }

  async ask(turn) {
    try {
      const answer = await this.look(this.currentSpec);
      if (turn !== this.asked || this.signal.aborted) return null;
      setConnection("check", true);
      if (this.fromText && answer.data) {
        // Several seeds stay if the text has the first of them.
        const isSame = String(answer.data.seed) === String(this.draft.get("seed"));
        this.draft = new Draft(answer.data, isSame ? this.draft.seeds : null);
        this.redraw(true);
        clearTimeout(this.timer);
      }
      this.tell(answer);
      return answer;
    } catch (error) {
      if (!this.signal.aborted) {
        setConnection("check", !isTemporary(error));
        setText(this.verdict, error.message);
        // Not while the page is hidden: checks that take too long are refused as well, and hold others up.
        const askAgain = () => runWhileVisible(this.signal, () => this.checkAll());
        if (isTemporary(error) && turn === this.asked) this.timer = setTimeout(askAgain, AGAIN);
      }
      return null;
    }
  }

  // Checks the first spec, then each value of the varied fields by itself.
  async checkAll() {
    const first = await this.check();
    const cells = listOtherValues(this.grid.axes, this.fromText);
    if (!first?.data || !cells.length) return;
    const [turn, isOver] = [this.asked, () => turn !== this.asked || this.signal.aborted];
    try {
      const asked = { told: first.errors, look: (spec) => this.look(spec), isOver };
      const errors = await findValueErrors(this.plannedJobs, cells.slice(0, MOST_CHECKED), asked);
      if (errors?.length) this.tell({ ...first, valid: false, errors: [...first.errors, ...errors] });
      else if (errors && first.valid) this.say(cells.length > MOST_CHECKED ? `${MOST_CHECKED} values are checked and valid. Submit checks all.` : VALID, "good");
    } catch (error) {
      if (!isOver()) this.say(error.message, "fault");
    }
  }

  tell({ valid, errors, warning }) {
    this.plan.warn(warning ?? "");
    showFaults(this.left, this.others, errors);
    const words = `${countOf(errors.length, "error")}: see the marked fields`;
    const isSeveral = listOtherValues(this.grid.axes, this.fromText).length > 0;
    const good = isSeveral ? "The first spec is valid. Checking the other values …" : "This spec is valid.";
    this.say(valid ? good : words, valid ? "good" : "fault");
  }

  say(text, kind = "") {
    setText(this.verdict, text);
    this.verdict.className = kind;
  }

  async send() {
    if (!this.begun) return; // the first spec is still loading
    clearTimeout(this.timer);
    const answer = await this.check();
    if (answer?.valid) {
      if (this.vary.check()) await this.sendAll();
      else this.say('Complete the marked rows below "Vary"', "fault");
    }
    this.left.querySelector("[aria-invalid]")?.focus();
  }

  async sendAll() {
    const planned = this.plannedJobs;
    const number = countRuns(planned);
    if (number > MOST) {
      this.say(`${number} jobs are more than the ${MOST} that this page submits: copy the file below "Vary" and run \`fedsim sweep FILE\``, "fault");
      return;
    }
    const runs = listRuns(planned);
    const bodies = runs.map(({ spec, labels }) => ({ spec, priority: planned.priority, labels }));
    try {
      const isAgain = this.submission.countSent(bodies) > 0;
      if (number > 1 && !isAgain && !await this.confirmGroup(planned, number)) return;
      if (!await this.checkCells(planned) || this.signal.aborted) return;
      const jobs = await this.submission.send(bodies, (count) => number > 1 && this.say(`Submitting ${count} of ${number} …`));
      notice(number > 1 ? `${number} jobs are queued` : `${jobs[0].name} is queued`);
      location.hash = number > 1 ? `#/jobs?${new URLSearchParams({ label: `group=${planned.group}` })}` : `#/jobs/${jobs[0].id}`;
    } catch (error) {
      const done = this.submission.countSent(bodies);
      if (!this.signal.aborted) this.tellBreak(error, runs, bodies);
      else if (done) notice(`${done} of ${number} jobs were submitted before you left the form`, true);
    }
  }

  // Asks the reader about many jobs, and about a group that has jobs already.
  async confirmGroup({ axes, seeds, group }, number) {
    const { jobs } = await withToken(() => get(`/jobs?${new URLSearchParams({ label: `group=${group}`, limit: 1 })}`, { signal: this.signal }));
    if (number <= MANY && !jobs.length) return true;
    const known = jobs.length ? ` The group ${group} has jobs already; the new jobs join it. Another name makes another group.` : "";
    return confirm({ head: `Submit ${number} jobs?`, text: `${describeCount({ axes, seeds })}.${known}`, yes: "Submit" });
  }

  // Says what is wrong with the first wrong combination; returns whether there is none.
  async checkCells(planned) {
    const errors = await findCellErrors(planned, { look: (spec) => this.look(spec), news: (text) => this.say(text) });
    if (errors) this.tell({ valid: false, errors });
    return !errors;
  }

  // Says which jobs were submitted before an error; the next click goes on with the others.
  tellBreak(error, runs, bodies) {
    const done = this.submission.countSent(bodies);
    const words = describeError(error);
    if (error.errors?.length) this.tell({ valid: false, errors: error.errors });
    else if (runs.length === 1) notice(words, true);
    if (runs.length === 1) return;
    const last = done ? `, up to "${runs[done - 1].run}"` : "";
    this.say(`${done} of ${runs.length} jobs are submitted${last}. ${words}. Submit again to go on.`, "fault");
  }
}

const parseLabels = (text) => Object.fromEntries(text.split(",").map((each) => each.trim()).filter(Boolean).map((each) => {
  const [key, ...value] = each.split("=");
  return [key.trim(), value.join("=").trim()];
}));
