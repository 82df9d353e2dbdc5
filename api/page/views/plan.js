// The plan of a spec: measured resources, memory, traffic and run time.

import { button, element, setText } from "../element.js";
import { stringify } from "../exact_json.js";
import { describeError, LONG, post } from "../service.js";
import { withToken } from "../session.js";
import { bytes, count, countOf, span } from "../formatting.js";

// `spec()` is the spec of a job, `number()` the number of jobs. The summary stands beside the button; the section has all figures.
export function planner(spec, number, signal) {
  const answer = element("div", { id: "plan", role: "status" }, element("p", { class: "soft" },
    "Measures training on the cluster for 30 seconds to 5 minutes. Then shows the workers that fit, the memory and the run time."));
  const start = button("Measure a plan", measure, { id: "plan-start" });
  const summary = element("span", { id: "plan-summary" }, "");
  let last = null;

  async function measure() {
    const began = Date.now();
    const line = element("p", {}, "Measuring …");
    answer.replaceChildren(line);
    last = null;
    const tell = () => [line, summary].forEach((each) => setText(each, `Measuring for ${span(Math.round((Date.now() - began) / 1000))} …`));
    const tick = setInterval(tell, 1000);
    tell();
    try {
      const asked = spec();
      const plan = await withToken(() => post("/plan", asked, { signal, seconds: LONG }));
      last = { plan, asked: stringify(sortKeys(asked)) };
      answer.replaceChildren(...renderPlan(plan));
    } catch (error) {
      if (!signal.aborted) answer.replaceChildren(element("p", { class: "message bad" }, describeError(error)));
      setText(summary, "no plan: see below");
    }
    clearInterval(tick);
    update();
  }

  // Says the summary again, after a change of the spec or of the number of jobs.
  function update() {
    if (last) setText(summary, `${summarise(last.plan, number())}${stringify(sortKeys(spec())) === last.asked ? "" : " (measured before the last change)"}`);
  }
  // Shows the check's warning of a long run until there is a plan.
  function warn(text) {
    if (!last && !start.hasAttribute("aria-disabled")) setText(summary, text);
  }
  const section = element("section", { "aria-labelledby": "plan-head" }, element("h2", { id: "plan-head" }, "Plan"), answer);
  return { section, start, summary, update, warn };
}

// A field that was cleared and filled again is the last one of its section.
function sortKeys(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sortKeys(value[key])]));
}

// "fits: 2 workers, 43 s, 7.7 MB of traffic"; several jobs take their number times as long.
function summarise({ fits, workers, seconds, bytes: traffic, message }, number) {
  if (!fits) return `does not fit: ${message}`;
  const time = seconds && (number > 1
    ? `${number} jobs x ${span(seconds.total)} = ${span(number * seconds.total)}, one after the other` : span(seconds.total));
  const found = [workers && countOf(workers, "worker"), traffic && `${bytes(traffic.total.down + traffic.total.up)} of traffic${number > 1 ? " each" : ""}`, time];
  return `fits: ${found.filter(Boolean).join(", ")}`;
}

function renderPlan(plan) {
  const pairs = figures(plan).map(([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, value)));
  const head = plan.fits
    ? element("p", { class: "message good" }, "The job fits the cluster.")
    : element("p", { class: "message bad" }, `The job does not fit the cluster: ${plan.message}${plan.hint ? `. ${plan.hint}` : ""}`);
  const notes = [...plan.faster, ...plan.notes].map((text) => element("li", {}, text));
  return [head, element("dl", { class: "pairs" }, pairs), notes.length ? element("ul", {}, notes) : null].filter(Boolean);
}

function figures({ clients, workers, device, seconds, bytes: traffic, clock, memory, rounds, nodes }) {
  const found = [["cohort", `${count(clients.per_round)} of ${count(clients.total)} clients`]];
  if (workers) found.push(["workers", `${workers}, at most ${countOf(clients.per_worker, "client")} each per round`]);
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
  if (clock) found.push(["simulated time of a round", span(clock.round)], ["simulated time of the run", span(clock.total)]);
  if (memory) found.push(["memory of a worker", bytes(memory.worker)], ["memory of the data on each node", bytes(memory.shared)]);
  if (memory?.gpu) found.push(["GPU memory of a worker", bytes(memory.gpu)]);
  nodes.forEach((node) => found.push([node.name, `${node.cpus} CPU, ${node.gpus} GPU: ${node.fit} workers fit`]));
  return found;
}
