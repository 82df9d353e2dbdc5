// The plan of a spec: what it needs here, measured, and what it will take.

import { button, element, setText } from "../element.js";
import { LONG, post } from "../service.js";
import { withToken } from "../session.js";
import { bytes, count, span } from "../formatting.js";

export function planner(spec, signal) {
  const answer = element("div", { id: "plan", role: "status" }, element("p", { class: "soft" },
    "Measures a client on the cluster, which takes from half a minute to a few: then it says what fits, and how long the run will take."));
  const start = button("Measure a plan", measure, { id: "plan-start" });

  async function measure() {
    const began = Date.now();
    const line = element("p", {}, "Measuring …");
    answer.replaceChildren(line);
    const tick = setInterval(() => setText(line, `Measuring for ${span(Math.round((Date.now() - began) / 1000))} …`), 1000);
    try {
      const plan = await withToken(() => post("/plan", spec(), { signal, seconds: LONG }));
      answer.replaceChildren(...renderPlan(plan));
    } catch (error) {
      if (!signal.aborted) answer.replaceChildren(element("p", { class: "message bad" }, `${error.message}${error.hint ? `: ${error.hint}` : ""}`));
    }
    clearInterval(tick);
  }
  return element("section", { "aria-labelledby": "plan-head" },
    element("div", { class: "title" }, element("h2", { id: "plan-head" }, "Plan"), start), answer);
}

function renderPlan(plan) {
  const pairs = figures(plan).map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value)));
  const head = plan.fits
    ? element("p", { class: "message good" }, "It fits.")
    : element("p", { class: "message bad" }, `It does not fit: ${plan.message}${plan.hint ? `. ${plan.hint}` : ""}`);
  const notes = [...plan.faster, ...plan.notes].map((text) => element("li", {}, text));
  return [head, element("dl", { class: "pairs" }, pairs), notes.length ? element("ul", {}, notes) : null].filter(Boolean);
}

function figures({ clients, workers, device, seconds, bytes: traffic, memory, rounds, nodes }) {
  const found = [["clients in a round", `${count(clients.per_round)} of ${count(clients.total)}`]];
  if (workers) found.push(["actors", `${workers}, with ${clients.per_worker} ${clients.per_worker === 1 ? "client" : "clients"} each at most`]);
  if (device) found.push(["trains on", device === "cuda" ? "GPU" : "CPU"]);
  if (seconds) {
    found.push(["a round", span(seconds.round.total)], ["of it training", span(seconds.round.train)]);
    if (seconds.round.learn) found.push(["of it the server's own training", span(seconds.round.learn)]);
    found.push(["until the first round", span(seconds.startup)], [`all ${rounds} rounds`, span(seconds.total)]);
  }
  if (traffic) {
    found.push(["down, a round", bytes(traffic.round.down)], ["up, a round", bytes(traffic.round.up)]);
    found.push(["traffic in all", bytes(traffic.total.down + traffic.total.up)]);
  }
  if (memory) found.push(["memory of an actor", bytes(memory.worker)], ["data on a node", bytes(memory.shared)]);
  if (memory?.gpu) found.push(["GPU memory of an actor", bytes(memory.gpu)]);
  nodes.forEach((node) => found.push([node.name, `${node.cpus} CPU, ${node.gpus} GPU: ${node.fit} actors fit`]));
  return found;
}
