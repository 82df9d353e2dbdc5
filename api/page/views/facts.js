// The figures of one job: results, cost, values of the algorithm, workers, times.

import { append, element, setText } from "../element.js";
import { bytes, choice, flops, formatTime, cohortOf, count, countOf, curriculumOf, FINAL, formatValue, measure, formatMetricName, number, seconds, since, span, secondsOfWork } from "../formatting.js";
import { findMainMetric } from "../metrics.js";

// Where clients run, by the name of the pool in a record.
const PLACES = { ray: "on workers", serial: "in one process", stacked: "in one process" };

export function facts() {
  const root = element("section", { class: "facts", "aria-labelledby": "facts-head" }, element("h2", { id: "facts-head" }, "Figures"));
  const groups = new Map();
  return { root, update: (job, records) => Object.entries(figures(job, records)).forEach(([name, pairs]) => {
    if (!groups.has(name)) {
      groups.set(name, element("dl", { class: "pairs", id: `facts-${name}` }));
      append(root, [element("h3", {}, { reached: "Results", cost: "Cost", method: "Values reported by the algorithm", engine: "Workers", times: "Times" }[name]), groups.get(name)]);
    }
    fill(groups.get(name), pairs.filter(([, value]) => value !== null && value !== undefined));
  }) };
}

// Changes only different texts, so that a selection survives an update.
function fill(list, pairs) {
  pairs.forEach(([term, value], index) => {
    const item = list.children[index] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    setText(item.firstChild, term);
    setText(item.lastChild, value);
  });
  while (list.children.length > pairs.length) list.lastChild.remove();
}

function figures(job, records) {
  const said = records.method.values.map(({ title, value }) => [title, formatValue(value)]);
  return { reached: listScores(job, records), cost: costs(job, records), ...(said.length ? { method: said } : {}), engine: engine(job, records), times: times(job) };
}

function listScores(job, records) {
  const name = findMainMetric(job.last_metrics);
  const best = records.best(name);
  const values = Object.entries(job.last_metrics).filter(([, value]) => typeof value === "number");
  if (!values.length) return [["metrics", FINAL.has(job.state) ? "none" : "none yet"]];
  return [
    best ? [`best ${formatMetricName(name)}`, `${measure(name, best.metrics[name])} at round ${best.round}`] : ["", null],
    ...values.map(([metric, value]) => [formatMetricName(metric), measure(metric, value)]),
  ];
}

function costs({ state }, { all, bytes: sent, seconds: taken, updates, flops: operations, joules, last }) {
  if (!last) return [["rounds", FINAL.has(state) ? "none" : "none yet"]];
  const cost = all.some((record) => record.cost);
  const tuning = all.reduce((total, record) => total + (record.cost?.tuning_flops ?? 0), 0);
  const personal = all.reduce((total, record) => total + (record.bytes.personal ?? 0), 0);
  return [
    ["traffic", bytes(sent.at(-1))],
    ["traffic down, last round", bytes(last.bytes.down)],
    ["traffic up, last round", bytes(last.bytes.up)],
    personal ? ["extra traffic down for the personal evaluation", bytes(personal)] : ["", null],
    ["computing time", span(taken.at(-1))],
    ["mean time of a round", span(taken.at(-1) / all.length)],
    last.clock ? ["simulated time", span(last.clock.total)] : ["", null],
    last.clock ? ["energy of the clients", `${number(joules.at(-1))} J`] : ["", null],
    cost ? ["parameter updates", number(updates.at(-1))] : ["", null],
    cost ? ["FLOPs", flops(operations.at(-1))] : ["", null],
    tuning ? ["FLOPs of fine-tuning", flops(tuning)] : ["", null],
  ];
}

function engine({ spec, restarts, resumes }, { last, failed, restarts: replaced }) {
  const { cpus_per_worker: cpus, gpus_per_worker: gpus } = spec.resources;
  const running = last?.engine;
  return [
    ["clients", `${count(spec.clients.total)}, ${count(cohortOf(spec))} in each round`],
    running ? ["workers", String(running.actors)] : ["", null],
    running ? ["clients run", PLACES[running.pool] ?? running.pool] : ["", null],
    running?.width > 1 ? ["clients that a worker trains at once", String(running.width)] : ["", null],
    ["resources of a worker", `${cpus} CPU${gpus ? `, ${gpus} GPU` : ""}`],
    ["workers replaced", String(replaced)],
    ["clients failed", String(failed)],
    ["restarts of the job", String(restarts)],
    resumes ? ["times resumed", String(resumes)] : ["", null],
  ];
}

function times(job) {
  const time = secondsOfWork(job);
  return [
    ["created", `${since(job.created_at)} ago, ${formatTime(job.created_at)}`],
    job.submitted_at ? ["time in the queue", span(Math.round(seconds(job.created_at, job.submitted_at)))] : ["", null],
    job.submitted_at && job.started_at && !job.resumes ? ["time to start", span(Math.round(seconds(job.submitted_at, job.started_at)))] : ["", null],
    time === null ? ["", null] : ["run time", span(Math.round(time))],
    job.finished_at ? ["ended", formatTime(job.finished_at)] : ["", null],
    ["priority", String(job.priority)],
    ...Object.entries(job.labels).map(([name, value]) => [`label ${name}`, value || "(no value)"]),
  ];
}

// The sections of a spec that change what clients send.
const UPLOADS = ["attack", "aggregation", "compression"];

// The spec of the job in one line.
export function summary({ spec, id }) {
  const models = (Array.isArray(spec.model) ? spec.model : [spec.model]).map((each) => choice(each)).join(", ");
  const { epochs, steps, batch_size: batch, lr } = spec.local;
  const work = steps ? `${steps} steps` : countOf(epochs, "epoch");
  return [
    choice(spec.algorithm) + curriculumOf(spec), choice(spec.data.dataset), choice(spec.data.partition, "kind"), models,
    `${work}, batch ${batch}, lr ${lr}`, ...UPLOADS.filter((name) => spec[name]).map((name) => `${name} ${choice(spec[name])}`), `seed ${spec.seed}`, id,
  ].join(" · ");
}
