// The page: the list of jobs, and the chosen one, live.

import { Chart } from "./chart.js";
import { follow, get, hasToken, keepToken, Refused, request } from "./service.js";

const LIST_EVERY = 3000;
const FINAL = new Set(["SUCCEEDED", "FAILED", "CANCELLED"]);

const find = (id) => document.getElementById(id);
const chart = new Chart(find("chart"), find("chart-words"));
const heard = { list: null, stream: true };

let chosen = null; // { id, job, stop }
let asking = null;

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showConnection() {
  const lost = heard.list === false || !heard.stream;
  const text = lost ? "The connection to the service is lost; trying again …" : "Connected";
  say(find("connection"), heard.list === null && !lost ? "Connecting …" : text);
  find("connection").classList.toggle("lost", lost);
}

function askForToken(again) {
  asking ??= new Promise((resolve) => {
    const dialog = find("token-dialog");
    if (again) say(find("token-note"), "The service did not accept this token.");
    find("token").value = "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      keepToken(find("token").value.trim());
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

// Does `work`; where the service asks for a token, asks the reader for it and does it again.
async function withToken(work) {
  for (let again = hasToken(); ; again = true) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 401) throw error;
      await askForToken(again);
    }
  }
}

function badge(element, state) {
  element.dataset.state = state;
  element.classList.add("state");
  say(element, state.toLowerCase());
}

const accuracy = (job) => {
  const value = job.last_metrics.global_accuracy;
  return typeof value === "number" ? `accuracy ${value.toFixed(4)}` : "not scored yet";
};

function entry(job) {
  const button = document.createElement("button");
  const [name, state, facts] = ["name", "state", "facts"].map((kind) => {
    const span = document.createElement("span");
    span.className = kind;
    button.append(span);
    return span;
  });
  button.type = "button";
  button.setAttribute("aria-current", String(chosen?.id === job.id));
  button.addEventListener("click", () => {
    location.hash = `job=${job.id}`;
    // Where the list stands above the job, the job may be out of sight.
    if (matchMedia("(max-width: 899px)").matches) find("detail").scrollIntoView();
  });
  say(name, job.name);
  badge(state, job.state);
  say(facts, `round ${job.rounds_done} of ${job.rounds_total} · ${accuracy(job)} · ${since(job.created_at)}`);
  const item = document.createElement("li");
  item.dataset.job = job.id;
  item.append(button);
  return item;
}

function since(moment) {
  const seconds = Math.max(0, (Date.now() - new Date(moment)) / 1000);
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([length]) => seconds >= length) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

async function refreshList() {
  try {
    const page = await withToken(() => get("/jobs?limit=100"));
    heard.list = true;
    showList(page.jobs);
  } catch (error) {
    heard.list = false;
  }
  showConnection();
}

function showList(jobs) {
  const focused = document.activeElement?.closest("#job-list li")?.dataset.job;
  find("job-list").replaceChildren(...jobs.map(entry));
  if (focused) document.querySelector(`#job-list li[data-job="${CSS.escape(focused)}"] button`)?.focus();
  say(find("jobs-note"), jobs.length ? "" : "No jobs yet. Submit one in a terminal: fedsim submit demo");
  find("jobs-note").hidden = jobs.length > 0;
  if (!chosen && jobs.length && !location.hash.startsWith("#job=")) choose(jobs[0].id);
  const job = jobs.find(({ id }) => id === chosen?.id);
  // A job that was resumed has events again, after those with which its stream ended.
  if (job && FINAL.has(chosen.job?.state) && !FINAL.has(job.state)) choose(job.id);
  else if (job) showJob(job);
}

function showJob(job) {
  chosen.job = job;
  find("detail-note").hidden = true;
  find("job").hidden = false;
  say(find("job-head"), job.name);
  badge(find("job-state"), job.state);
  const { algorithm, data, clients, model } = job.spec;
  say(find("job-what"), `${algorithm.name} · ${data.dataset.name}, ${data.partition.kind} · ${model.name} · `
    + `${clients.total} clients, ${clients.fraction} of them in a round · ${job.id}`);
  const message = job.message ?? job.waiting ?? "";
  say(find("job-message"), message);
  find("job-message").hidden = !message;
  find("job-message").classList.toggle("bad", job.state === "FAILED");
  showProgress(job.rounds_done);
  showMetrics(job.last_metrics);
}

function showProgress(done) {
  find("job-progress").max = chosen.job.rounds_total;
  find("job-progress").value = done;
  say(find("job-rounds"), `${done} of ${chosen.job.rounds_total} rounds`);
}

function showMetrics(metrics) {
  const items = Object.entries(metrics).filter(([, value]) => typeof value === "number");
  find("job-metrics").replaceChildren(...items.map(([name, value]) => {
    const item = document.createElement("div");
    const [term, definition] = [document.createElement("dt"), document.createElement("dd")];
    say(term, name.replaceAll("_", " "));
    say(definition, String(Number(value.toPrecision(4))));
    item.append(term, definition);
    return item;
  }));
}

async function choose(id) {
  chosen?.stop.abort();
  const stop = new AbortController();
  chosen = { id, job: null, stop };
  heard.stream = true;
  chart.clear();
  document.querySelectorAll("#job-list li").forEach((item) => {
    item.firstChild.setAttribute("aria-current", String(item.dataset.job === id));
  });
  try {
    const job = await withToken(() => get(`/jobs/${encodeURIComponent(id)}`, { signal: stop.signal }));
    if (stop.signal.aborted) return;
    showJob(job);
    await withToken(() => follow(id, { onEvent, onConnection, signal: stop.signal }));
  } catch (error) {
    if (stop.signal.aborted) return;
    find("job").hidden = true;
    find("detail-note").hidden = false;
    say(find("detail-note"), `Job ${id}: ${error.message}`);
  }
}

function onConnection(there) {
  heard.stream = there;
  showConnection();
}

function onEvent(type, data) {
  if (type === "round") {
    chart.add(data);
    showProgress(data.round);
  } else if (type === "state") {
    badge(find("job-state"), data.state);
    // The list has the rest: message, metrics, why it waits.
    if (FINAL.has(data.state)) refreshList();
  }
}

async function saveCsv() {
  const { id } = chosen;
  const response = await withToken(() => request(`/jobs/${encodeURIComponent(id)}/rounds`, { headers: { Accept: "text/csv" } }));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = `${id}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function chooseByHash() {
  const [, id] = location.hash.match(/^#job=([a-z0-9]+)$/) ?? [];
  if (id) choose(id);
}

find("csv").addEventListener("click", () => saveCsv().catch((error) => say(find("job-rounds"), error.message)));
window.addEventListener("hashchange", chooseByHash);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshList(); });
setInterval(() => { if (!document.hidden && !asking) refreshList(); }, LIST_EVERY);
refreshList().then(chooseByHash);
