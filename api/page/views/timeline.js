// The timeline of a job: seconds of each phase, and events as text.

import { axis, Chart } from "../chart.js";
import { colour, curveColour, faint } from "../colours.js";
import { element, show } from "../element.js";
import { phasesOf } from "../records.js";
import { countOf, formatTime, span } from "../formatting.js";
import { formatReason } from "./no_rounds.js";

const MOST_EVENTS = 300;

// `job()` returns the job, whose spec has the resources of a worker.
export function timeline(records, job, signal) {
  const picture = element("div", { class: "chart low", id: "time-chart", role: "img", "aria-labelledby": "timeline-head time-words", hidden: true });
  const words = element("p", { class: "soft", id: "time-words" }, "No round has ended.");
  const list = element("ol", { class: "events", id: "events", tabindex: "0", "aria-label": "Events, newest first" });
  const root = element("section", { class: "timeline", "aria-labelledby": "timeline-head" },
    element("h2", { id: "timeline-head" }, "Timeline"), element("div", { class: "halves" },
      element("div", {}, picture, words), list));
  const chart = new Chart(picture, words, () => drawTimeline(records), signal);

  let workers = 0;

  function line(kind, when, text) {
    list.prepend(element("li", { data: { kind } }, element("span", { class: "when" }, when), element("span", {}, text)));
    if (list.children.length > MOST_EVENTS) list.lastChild.remove();
  }

  return {
    root,
    draw: () => {
      show(picture, true);
      chart.draw();
    },
    state: ({ state, reason, message, at }) => {
      const why = [reason && formatReason(reason), message].filter(Boolean).join(": ");
      line(state, formatTime(at), `${state.toLowerCase()}${why ? `: ${why}` : ""}`);
    },
    warning: ({ message, at }) => line("warning", formatTime(at), message),
    round: ({ round, failed, engine }) => {
      if (engine.actors !== workers) line("actors", `round ${round}`, `${countOf(engine.actors, "worker")} ${formatResources(job().spec.resources)}`);
      workers = engine.actors;
      if (engine.restarts) line("warning", `round ${round}`, `${countOf(engine.restarts, "worker")} replaced`);
      const retries = engine.client_retries ?? 0;
      if (retries) line("warning", `round ${round}`, `${countOf(retries, "client")} retried after an error`);
      if (failed.length) line("warning", `round ${round}`, `clients left out because they failed: ${failed.join(", ")}${describeFirstError(engine)}`);
    },
  };
}

function drawTimeline(records) {
  const { all } = records;
  const x = all.map(({ round }) => round);
  const traces = phasesOf(records).map(([phase, name], index) => ({
    name, x, y: all.map(({ seconds }) => seconds[phase] ?? 0), type: "scatter", mode: "lines", stackgroup: "seconds",
    line: { width: 0.5, color: curveColour(index) }, fillcolor: faint(curveColour(index), 0.45), hovertemplate: "%{y:.3f} s",
  }));
  const failing = all.filter(({ engine, failed }) => engine.restarts || engine.client_retries || failed.length);
  if (failing.length) traces.push(makeFailureTrace(failing));
  const layout = {
    showlegend: true, margin: { l: 44, r: 14, t: 34, b: 38 },
    xaxis: axis("round", { rangemode: "tozero" }),
    yaxis: axis("seconds", { rangemode: "tozero" }),
  };
  return { traces, layout, words: describeRounds(all, failing.length) };
}

// The resources of a worker, e.g. `with 1 CPU, 0.25 GPU each`.
const formatResources = ({ cpus_per_worker: cpus, gpus_per_worker: gpus }) => `with ${cpus} CPU${gpus ? `, ${gpus} GPU` : ""} each`;

function describeFirstError({ client_errors: errors }) {
  const [first] = Object.entries(errors ?? {});
  return first ? `; first error (client ${first[0]}): ${first[1]}` : "";
}

function makeFailureTrace(records) {
  return {
    name: "failures", x: records.map(({ round }) => round), y: records.map(({ seconds }) => seconds.total),
    type: "scatter", mode: "markers", cliponaxis: false, marker: { symbol: "x", size: 8, color: colour("--bad") },
    text: records.map(({ engine, failed }) => `${countOf(engine.restarts ?? 0, "worker")} replaced, ${engine.client_retries ?? 0} retries, ${failed.length} clients failed`),
    hovertemplate: "%{text}",
  };
}

function describeRounds(all, failing) {
  const mean = all.reduce((sum, { seconds }) => sum + seconds.total, 0) / all.length;
  const rest = failing ? ` ${failing} of these rounds had a failure and recovered.` : "";
  return `Mean time of a round: ${span(mean)} (over ${countOf(all.length, "round")}).${rest}`;
}
