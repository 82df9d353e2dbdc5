// The view of one job, updated while the job runs.

import { actionButtons } from "../job_actions.js";
import { load } from "../chart.js";
import { badge, element, replaceIfChanged, setText, show } from "../element.js";
import { Records } from "../records.js";
import { follow, get, isTemporary, jobPath } from "../service.js";
import { setConnection, isAsking, withToken } from "../session.js";
import { pause } from "../waiting.js";
import { FINAL, span } from "../formatting.js";
import { clientTimes } from "./client_times.js";
import { clients } from "./clients.js";
import { curves } from "./curves.js";
import { facts, summary } from "./facts.js";
import { makeFileSections } from "./job_files.js";
import { comparison, groupOf, readGroup } from "./job_groups.js";
import { noRounds } from "./no_rounds.js";
import { timeline } from "./timeline.js";

const EVERY = 3000;
const LATEST = 10;
const DRAW_DELAY = 80; // ms; a long job sends many rounds at once when it is opened: one drawing for all of them
const TIMELINE_DELAY = 250; // ms after the curves
const METHOD_SHARE = 5; // the page waits this many times as long as the service took to describe the algorithm

export const title = "Job";

export async function open(root, { id, signal }) {
  const note = element("p", { class: "message", id: "job-note" }, "Loading …");
  root.append(note);
  load().catch(() => {}); // the charts need the library later, and report errors themselves
  try {
    const job = await withToken(() => get(jobPath(id), { signal }));
    new JobView(root, note, job, signal).start();
  } catch (error) {
    if (signal.aborted) return;
    note.replaceChildren(`Job ${id}: ${error.message}. `, linkToJobs());
    note.classList.add("bad");
    if (isTemporary(error)) setTimeout(() => signal.aborted || (root.replaceChildren(), open(root, { id, signal })), EVERY);
    setConnection("job", !isTemporary(error));
  }
}

const linkToJobs = () => element("a", { href: "#/jobs" }, "Go to the list of jobs");

class JobView {
  constructor(root, note, job, signal) {
    Object.assign(this, { job, signal, note, records: new Records() });
    this.head = element("h1", { id: "job-head" });
    this.state = element("span", { id: "job-state", role: "status" });
    this.what = element("p", { class: "soft", id: "job-what" });
    this.bar = element("progress", { id: "job-progress", "aria-label": "Rounds done" });
    this.rounds = element("p", { class: "soft figure", id: "job-rounds" });
    this.group = element("a", { id: "compare-group", hidden: true });
    this.actions = actionButtons((name) => this.afterAction(name));
    this.curves = curves(this.records, () => this.job, signal);
    this.facts = facts();
    this.timeline = timeline(this.records, () => this.job, signal);
    this.clientTimes = clientTimes(this.records, signal);
    this.clients = clients(() => this.job, this.records, signal);
    this.files = makeFileSections(() => this.job, signal);
    this.noRounds = noRounds(() => this.files.showLog());
    root.append(
      element("div", { class: "title" }, this.head, this.state, element("span", { class: "row", id: "job-actions" }, this.actions.buttons)),
      this.what, note, this.bar, element("div", { class: "row", id: "job-progress-words" }, this.rounds, this.group),
      element("div", { class: "split" }, this.curves.root, this.noRounds.root, this.facts.root, this.timeline.root),
      this.clientTimes.root, this.clients.root, ...this.files.roots,
    );
    this.show(job);
  }

  start() {
    this.poll();
    this.listen();
    this.showGroup().catch(() => {}); // the connection line reports errors of the next requests
  }

  async showGroup() {
    const name = groupOf(this.job);
    if (!name) return;
    const { jobs, href } = comparison(await withToken(() => readGroup(name, this.signal)));
    setText(this.group, `Compare with group ${name} (${jobs})`);
    this.group.href = href;
    show(this.group, true);
  }

  async listen() {
    if (this.listening) return;
    // A resumed job sends events again, after its stream has ended.
    Object.assign(this, { listening: true, life: this.job.resumes });
    try {
      await withToken(() => follow(this.job.id, {
        onEvent: (type, data, event) => this.take(type, data, event),
        onConnection: (there) => this.signal.aborted || setConnection("stream", there),
        signal: this.signal,
      }));
    } catch (error) {
      if (!this.signal.aborted) this.tell(error.message, true);
    } finally {
      this.listening = false;
    }
  }

  // The stream sends the rounds; the page polls the rest of the job (state, reason for waiting). It also polls while it is
  // hidden, because its title shows the progress.
  async poll() {
    while (!this.signal.aborted && !this.isDeleted) {
      await pause(EVERY, this.signal);
      if (!this.signal.aborted && !isAsking()) await this.refresh();
    }
  }

  async refresh() {
    try {
      const job = await withToken(() => get(jobPath(this.job.id), { signal: this.signal }));
      setConnection("job", true);
      this.show(job);
      if (job.resumes !== this.life) this.listen();
    } catch (error) {
      if (this.signal.aborted) return;
      this.isDeleted = error.status === 404;
      if (this.isDeleted) this.tell("This job was deleted. ", true, linkToJobs());
      else setConnection("job", !isTemporary(error));
    }
  }

  take(type, data, event) {
    if (this.signal.aborted) return;
    if (type === "round") {
      if (!this.records.add(data)) return;
      this.timeline.round(data);
      this.later ??= setTimeout(() => this.draw(), DRAW_DELAY);
    } else {
      this.events ??= new Set();
      // A stream that was opened again repeats events.
      if (this.events.has(event)) return;
      this.events.add(event);
      this.timeline[type]?.(data);
      if (type === "state") badge(this.state, data.state);
      if (type === "state" && FINAL.has(data.state)) this.refresh();
    }
  }

  draw() {
    this.later = null;
    if (this.signal.aborted) return;
    this.curves.draw();
    // Readers look at the curves first, so they are drawn first.
    this.idle ??= setTimeout(() => {
      this.idle = null;
      this.timeline.draw();
      this.clientTimes.draw();
    }, TIMELINE_DELAY);
    const last = this.records.last;
    const job = { ...this.job, last_metrics: { ...this.job.last_metrics, ...(last.end?.metrics ?? last.metrics) } };
    this.facts.update(job, this.records);
    this.showProgress(Math.max(last.round, this.job.rounds_done));
    this.readMethodCurves();
  }

  // Reads the values that the algorithm reports, until they include the last round. Most algorithms report none.
  async readMethodCurves() {
    const { records, signal } = this;
    if (this.isReading || !records.all.some(({ method }) => Object.keys(method).length)) return;
    this.isReading = true;
    try {
      while (!signal.aborted && (records.method.rounds.at(-1) ?? 0) < records.last.round) {
        const started = Date.now();
        records.method = await withToken(() => get(jobPath(this.job.id, "/method-curves"), { signal }));
        this.curves.draw();
        this.facts.update(this.job, records);
        await pause(Math.max(EVERY, METHOD_SHARE * (Date.now() - started)), signal);
      }
    } catch {
      // The connection line reports an error of the service; the next round tries again.
    } finally {
      this.isReading = false;
    }
  }

  show(job) {
    this.job = job;
    if (job.state !== this.shown) {
      this.files.refresh();
      this.curves.draw(); // its words say whether an evaluation will come
    }
    this.shown = job.state;
    setText(this.head, job.name);
    badge(this.state, job.state);
    setText(this.what, summary(job));
    const isEmpty = FINAL.has(job.state) && !job.rounds_done && !this.records.last;
    show(this.curves.root, !isEmpty);
    show(this.noRounds.root, isEmpty);
    this.noRounds.update(job);
    const message = [job.message, job.waiting].filter(Boolean).join("; ");
    this.tell(isEmpty ? "" : message, job.state === "FAILED");
    this.actions.update(job);
    this.facts.update(job, this.records);
    this.showProgress(Math.max(job.rounds_done, this.records.last?.round ?? 0));
  }

  tell(message, bad, link = null) {
    replaceIfChanged(this.note, message, link);
    this.note.classList.toggle("bad", bad);
    show(this.note, Boolean(message));
  }

  showProgress(done) {
    this.bar.max = this.job.rounds_total;
    this.bar.value = done;
    // A reader with many tabs sees the progress, or the final state, in the title.
    const how = FINAL.has(this.job.state) ? this.job.state.toLowerCase() : `${done}/${this.job.rounds_total}`;
    document.title = `${how} · ${this.job.name} · fedsim`;
    setText(this.rounds, `${done} of ${this.job.rounds_total} rounds${this.formatTimeLeft(done)}`);
  }

  formatTimeLeft(done) {
    const latest = this.records.all.slice(-LATEST);
    if (FINAL.has(this.job.state) || !latest.length || done >= this.job.rounds_total) return "";
    const mean = latest.reduce((sum, { seconds }) => sum + seconds.total, 0) / latest.length;
    return `, about ${span(mean * (this.job.rounds_total - done))} left`;
  }

  afterAction(name) {
    if (name === "delete") location.hash = "#/jobs";
    else this.refresh();
  }
}
