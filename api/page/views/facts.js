// The figures of one job: results, cost, algorithm, workers, times.

import { append, element, setText } from "../element.js";
import { flat, worded } from "../method_curves.js";
import { accuracy, bytes, choice, formatTime, cohortOf, count, curriculumOf, findMainAccuracy, measure, formatMetricName, number, seconds, since, span, secondsOfWork } from "../formatting.js";

export function facts() {
  const root = element("section", { class: "facts", "aria-labelledby": "facts-head" }, element("h2", { id: "facts-head" }, "Figures"));
  const groups = new Map();
  return { root, update: (job, records) => Object.entries(figures(job, records)).forEach(([name, pairs]) => {
    if (!groups.has(name)) {
      groups.set(name, element("dl", { class: "pairs", id: `facts-${name}` }));
      append(root, [element("h3", {}, { reached: "Reached", cost: "Cost", method: "Method", engine: "Engine", times: "Times" }[name]), groups.get(name)]);
    }
    fill(groups.get(name), pairs.filter(([, value]) => value !== null && value !== undefined));
  }) };
}

// Changes only what differs: a selection in the figures lives through an update.
function fill(list, pairs) {
  pairs.forEach(([term, value], index) => {
    const item = list.children[index] ?? list.appendChild(element("div", {}, element("dt"), element("dd")));
    setText(item.firstChild, term);
    setText(item.lastChild, value);
  });
  while (list.children.length > pairs.length) list.lastChild.remove();
}

function figures(job, records) {
  const method = flat(records.last?.method).filter(([, value]) => value !== null);
  const said = method.map(([name, value]) => [formatMetricName(name), typeof value === "number" ? number(value) : worded(value)]);
  return { reached: listScores(job, records), cost: costs(records), ...(said.length ? { method: said } : {}), engine: engine(job, records), times: times(job) };
}

function listScores(job, records) {
  const name = findMainAccuracy(job.last_metrics);
  const best = records.best(name);
  const values = Object.entries(job.last_metrics).filter(([, value]) => typeof value === "number");
  if (!values.length) return [["so far", "nothing yet"]];
  return [
    best ? [`best ${formatMetricName(name)}`, `${accuracy(best.metrics[name])} at round ${best.round}`] : ["", null],
    ...values.map(([metric, value]) => [formatMetricName(metric), measure(metric, value)]),
  ];
}

function costs({ all, bytes: sent, seconds: taken, last }) {
  if (!last) return [["so far", "nothing yet"]];
  const cost = all.some((record) => record.cost);
  const sum = (key) => number(all.reduce((total, record) => total + (record.cost?.[key] ?? 0), 0));
  const personal = all.reduce((total, record) => total + (record.bytes.personal ?? 0), 0);
  return [
    ["traffic", bytes(sent.at(-1))],
    ["down, last round", bytes(last.bytes.down)],
    ["up, last round", bytes(last.bytes.up)],
    personal ? ["down besides, to score own models", bytes(personal)] : ["", null],
    ["computing", span(taken.at(-1))],
    ["a round", span(taken.at(-1) / all.length)],
    cost ? ["parameter updates", sum("updates")] : ["", null],
    cost ? ["FLOPs", sum("flops")] : ["", null],
    last.cost?.tuning_flops ? ["FLOPs of fine-tuning", sum("tuning_flops")] : ["", null],
  ];
}

function engine({ spec, restarts, resumes }, { last, failed, restarts: replaced }) {
  const { cpus_per_worker: cpus, gpus_per_worker: gpus } = spec.resources;
  const running = last?.engine;
  return [
    ["clients", `${count(spec.clients.total)}, ${count(cohortOf(spec))} in a round`],
    running ? ["actors", String(running.actors)] : ["", null],
    running ? ["pool", `${running.pool}, ${running.width} at once`] : ["", null],
    ["an actor has", `${cpus} CPU${gpus ? `, ${gpus} GPU` : ""}`],
    ["actors replaced", String(replaced)],
    ["clients failed", String(failed)],
    ["restarts", String(restarts)],
    resumes ? ["resumes", String(resumes)] : ["", null],
  ];
}

function times(job) {
  const time = secondsOfWork(job);
  return [
    ["made", `${since(job.created_at)} ago, ${formatTime(job.created_at)}`],
    job.submitted_at ? ["in the queue", span(Math.round(seconds(job.created_at, job.submitted_at)))] : ["", null],
    time === null ? ["", null] : ["at work", span(Math.round(time))],
    job.finished_at ? ["ended", formatTime(job.finished_at)] : ["", null],
    ["priority", String(job.priority)],
    ...Object.entries(job.labels).map(([name, value]) => [`label ${name}`, value || "set"]),
  ];
}

// What the job is, in a line.
export function summary({ spec, id }) {
  const models = (Array.isArray(spec.model) ? spec.model : [spec.model]).map((each) => choice(each)).join(", ");
  const { epochs, steps, batch_size: batch, lr } = spec.local;
  const work = steps ? `${steps} steps` : `${epochs} ${epochs === 1 ? "epoch" : "epochs"}`;
  return [
    choice(spec.algorithm) + curriculumOf(spec), choice(spec.data.dataset), choice(spec.data.partition, "kind"), models,
    `${work}, batch ${batch}, lr ${lr}`, `seed ${spec.seed}`, id,
  ].join(" · ");
}
