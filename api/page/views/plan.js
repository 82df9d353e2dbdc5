// The plan of a spec: measured resources, memory, traffic and run time.

import { button, element, setText } from "../element.js";
import { LONG, post } from "../service.js";
import { withToken } from "../session.js";
import { bytes, count, span } from "../formatting.js";

export function planner(spec, signal) {
  const answer = element("div", { id: "plan", role: "status" }, element("p", { class: "soft" },
    "Measures training on the cluster for 30 seconds to 5 minutes. Then shows the workers that fit, the memory and the run time."));
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
    ? element("p", { class: "message good" }, "The job fits the cluster.")
    : element("p", { class: "message bad" }, `The job does not fit the cluster: ${plan.message}${plan.hint ? `. ${plan.hint}` : ""}`);
  const notes = [...plan.faster, ...plan.notes].map((text) => element("li", {}, text));
  return [head, element("dl", { class: "pairs" }, pairs), notes.length ? element("ul", {}, notes) : null].filter(Boolean);
}

function figures({ clients, workers, device, seconds, bytes: traffic, memory, rounds, nodes }) {
  const found = [["cohort", `${count(clients.per_round)} of ${count(clients.total)} clients`]];
  if (workers) found.push(["workers", `${workers}, at most ${clients.per_worker} ${clients.per_worker === 1 ? "client" : "clients"} each per round`]);
  if (device) found.push(["device", device === "cuda" ? "GPU" : "CPU"]);
  if (seconds) {
    found.push(["time of a round", span(seconds.round.total)], ["time of local training in a round", span(seconds.round.train)]);
    if (seconds.round.learn) found.push(["time of server training in a round", span(seconds.round.learn)]);
    found.push(["start-up time", span(seconds.startup)], [`run time of all ${rounds} rounds`, span(seconds.total)]);
  }
  if (traffic) {
    found.push(["traffic down per round", bytes(traffic.round.down)], ["traffic up per round", bytes(traffic.round.up)]);
    found.push(["traffic of the run", bytes(traffic.total.down + traffic.total.up)]);
  }
  if (memory) found.push(["memory of a worker", bytes(memory.worker)], ["memory of the data on each node", bytes(memory.shared)]);
  if (memory?.gpu) found.push(["GPU memory of a worker", bytes(memory.gpu)]);
  nodes.forEach((node) => found.push([node.name, `${node.cpus} CPU, ${node.gpus} GPU: ${node.fit} workers fit`]));
  return found;
}
