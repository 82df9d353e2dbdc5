// The cluster: nodes with their resources and their measured load, processes of each job, and the queue.

import { badge, element, replaceIfChanged, setText, show } from "../element.js";
import { describeError, get } from "../service.js";
import { repeat } from "../session.js";
import { bytes, countOf, number } from "../formatting.js";

const EVERY = 5000;
const FIRST = 100; // jobs of the queue

export const title = "Cluster";

export function open(root, { signal }) {
  const note = element("p", { class: "message", id: "cluster-note" }, "Loading the cluster …");
  const nodes = element("div", { class: "nodes", id: "nodes" });
  const owners = element("div", { class: "wide", id: "owners", tabindex: "0", role: "region", "aria-label": "Processes by job" });
  const line = element("ol", { class: "queue", id: "queue" });
  root.append(element("h1", {}, "Cluster"), note,
    element("section", { "aria-labelledby": "nodes-head" }, element("h2", { id: "nodes-head" }, "Nodes"), nodes),
    element("section", { "aria-labelledby": "owners-head" }, element("h2", { id: "owners-head" }, "Jobs on the cluster"), owners),
    element("section", { "aria-labelledby": "queue-head" }, element("h2", { id: "queue-head" }, "Queue"), line));

  async function refresh() {
    const asked = ["STARTING", "RUNNING", "CANCELLING"].map((state) => `state=${state}`).join("&");
    const [active, queue] = await Promise.all([
      get(`/jobs?${asked}&limit=500`, { signal }),
      get(`/jobs?state=QUEUED&order_by=-priority&limit=${FIRST}`, { signal }),
    ]);
    const names = new Map([...active.jobs, ...queue.jobs].map((job) => [job.id, job]));
    showQueue(line, queue);
    try {
      const cluster = await get("/cluster", { signal });
      show(note, false);
      const cards = cluster.nodes.map((node) => nodeCard(node, cluster.jobs, names));
      replaceIfChanged(nodes, ...(cards.length ? cards : [element("p", { class: "soft" }, "The cluster has no nodes.")]));
      replaceIfChanged(owners, makeActorTable(cluster, names));
    } catch (error) {
      if (!error.status || error.status === 401) throw error;
      // The service answers, and the cluster does not, or not yet.
      setText(note, describeError(error));
      show(note, true);
      replaceIfChanged(nodes, element("p", { class: "soft" }, "The nodes are unknown: the cluster does not answer."));
      replaceIfChanged(owners, makeActorTable({ jobs: [] }, names));
    }
  }
  repeat("cluster", () => EVERY, signal, refresh);
}

function nodeCard({ id, address, head, cpus, gpus, usage }, jobs, names) {
  const here = jobs.filter(({ nodes }) => nodes.includes(id)).map(({ job_id: job }) => names.get(job)?.name ?? (job || "other programs"));
  return element("article", { class: "node" },
    element("h3", {}, address, head ? element("span", { class: "soft" }, " head of the cluster") : null),
    reserved("CPU", cpus), gpus.total ? reserved("GPU", gpus) : element("p", { class: "soft" }, "no GPU"), measured(usage),
    here.length ? element("p", { class: "soft" }, `used by ${here.join(", ")}`) : element("p", { class: "soft" }, "used by no job"));
}

const reserved = (kind, { total, free }) => gauge(`${number(Math.max(0, total - free))} of ${number(total)} ${kind}${total === 1 ? "" : "s"} reserved by jobs`, total - free, total);

// What Ray has measured on the node; nothing in the first seconds, or if Ray does not say it.
function measured(usage) {
  if (!usage) return element("p", { class: "soft" }, "memory and load: not measured");
  const { memory_used: used, memory_total: total, cpu_percent: percent, cpus, load } = usage;
  return [
    gauge(`${bytes(used)} of ${bytes(total)} of memory in use`, used, total),
    gauge(`${number(Math.round(percent))} % of ${countOf(cpus, "CPU")} busy, load ${load.toFixed(2)} in the last minute`, percent, 100),
  ];
}

function gauge(text, value, max) {
  return element("p", { class: "gauge" }, element("span", {}, text), element("meter", { min: 0, max: max || 1, value: Math.max(0, value), "aria-label": text }));
}

function makeActorTable({ jobs }, names) {
  const known = new Map(jobs.map((job) => [job.job_id, job]));
  const active = [...names.values()].filter(({ state }) => state !== "QUEUED");
  const ids = [...new Set([...active.map(({ id }) => id), ...known.keys()])];
  if (!ids.length) return element("p", { class: "soft" }, "No job uses the cluster.");
  const heads = ["Job", "State", "Processes", "CPUs", "GPUs", "Nodes"].map((text) => element("th", { scope: "col" }, text));
  return element("table", {}, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, ids.map((id) => {
    const job = names.get(id);
    const { actors = 0, waiting = 0, cpus = 0, gpus = 0, nodes = [] } = known.get(id) ?? {};
    const state = element("span");
    if (job) badge(state, job.state);
    const figures = [`${actors}${waiting ? `, ${waiting} starting` : ""}`, number(cpus), number(gpus), String(nodes.length)];
    return element("tr", {}, element("th", { scope: "row" }, job ? element("a", { href: `#/jobs/${id}` }, job.name) : id || "other programs"),
      element("td", {}, state), figures.map((text) => element("td", {}, text)));
  })));
}

// Ordered by the service: by priority, then by age.
function showQueue(list, { jobs, next_page_token: more }) {
  if (!jobs.length) return replaceIfChanged(list, element("li", { class: "soft" }, "The queue is empty."));
  replaceIfChanged(list, ...jobs.map((job) => element("li", {}, element("a", { href: `#/jobs/${job.id}` }, job.name),
    element("span", { class: "soft" }, [job.priority ? ` priority ${job.priority}` : "", job.waiting ?? ""].filter(Boolean).join(", ")))),
  more ? element("li", { class: "soft" }, "more jobs wait after these") : null);
}
