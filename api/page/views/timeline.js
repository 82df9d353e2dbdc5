// What happened to a job: its seconds by phase, and its events in words.

import { axis, Chart } from "../chart.js";
import { colour, curveColour, faint } from "../colours.js";
import { element } from "../element.js";
import { phasesOf } from "../records.js";
import { formatTime, span } from "../formatting.js";

const MOST_EVENTS = 300;

// `job()` is asked for what each of its actors has.
export function timeline(records, job, signal) {
  const picture = element("div", { class: "chart low", id: "time-chart", role: "img", "aria-labelledby": "timeline-head time-words" });
  const words = element("p", { class: "soft", id: "time-words" });
  const list = element("ol", { class: "events", id: "events", tabindex: "0", "aria-label": "Events, newest first" });
  const root = element("section", { class: "timeline", "aria-labelledby": "timeline-head" },
    element("h2", { id: "timeline-head" }, "Timeline"), element("div", { class: "halves" },
      element("div", {}, picture, words), list));
  const chart = new Chart(picture, words, () => drawing(records), signal);

  let actors = 0;

  function line(kind, when, text) {
    list.prepend(element("li", { data: { kind } }, element("span", { class: "when" }, when), element("span", {}, text)));
    if (list.children.length > MOST_EVENTS) list.lastChild.remove();
  }

  return {
    root,
    draw: () => chart.draw(),
    state: ({ state, reason, message, at }) => {
      const why = [reason?.toLowerCase().replaceAll("_", " "), message].filter(Boolean).join(": ");
      line(state, formatTime(at), `${state.toLowerCase()}${why ? `: ${why}` : ""}`);
    },
    warning: ({ message, at }) => line("warning", formatTime(at), message),
    round: ({ round, failed, engine }) => {
      if (engine.actors !== actors) line("actors", `round ${round}`, `${actorsWords(engine.actors)} ${formatResources(job().spec.resources)}`);
      actors = engine.actors;
      if (engine.restarts) line("warning", `round ${round}`, `${engine.restarts} ${engine.restarts === 1 ? "actor" : "actors"} replaced`);
      const retries = engine.client_retries ?? 0;
      if (retries) line("warning", `round ${round}`, `${retries} ${retries === 1 ? "client" : "clients"} trained again after an error`);
      if (failed.length) line("warning", `round ${round}`, `left out, because they failed: clients ${failed.join(", ")}${describeFirstError(engine)}`);
    },
  };
}

function drawing(records) {
  const { all } = records;
  const x = all.map(({ round }) => round);
  const traces = phasesOf(records).map(([phase, name], index) => ({
    name, x, y: all.map(({ seconds }) => seconds[phase] ?? 0), type: "scatter", mode: "lines", stackgroup: "seconds",
    line: { width: 0.5, color: curveColour(index) }, fillcolor: faint(curveColour(index), 0.45), hovertemplate: "%{y:.3f} s",
  }));
  const troubled = all.filter(({ engine, failed }) => engine.restarts || engine.client_retries || failed.length);
  if (troubled.length) traces.push(makeFailureTrace(troubled));
  const layout = {
    showlegend: true, margin: { l: 44, r: 14, t: 34, b: 38 },
    xaxis: axis("round", { rangemode: "tozero", ...(x.length ? {} : { range: [0, 10] }) }),
    yaxis: axis("seconds", { rangemode: "tozero" }),
  };
  return { traces, layout, words: sentence(all, troubled.length) };
}

const actorsWords = (count) => `${count} ${count === 1 ? "actor" : "actors"}`;

// What an actor holds of its node, a GPU in fractions.
export const formatResources = ({ cpus_per_worker: cpus, gpus_per_worker: gpus }) => `with ${cpus} CPU${gpus ? `, ${gpus} GPU` : ""} each`;

function describeFirstError({ client_errors: errors }) {
  const [first] = Object.entries(errors ?? {});
  return first ? `; client ${first[0]}: ${first[1]}` : "";
}

function makeFailureTrace(records) {
  return {
    name: "replaced, retried, left out", x: records.map(({ round }) => round), y: records.map(({ seconds }) => seconds.total),
    type: "scatter", mode: "markers", cliponaxis: false, marker: { symbol: "x", size: 8, color: colour("--bad") },
    text: records.map(({ engine, failed }) => `${actorsWords(engine.restarts ?? 0)} replaced, ${engine.client_retries ?? 0} retries, ${failed.length} clients left out`),
    hovertemplate: "%{text}",
  };
}

function sentence(all, troubled) {
  if (!all.length) return "No round has ended yet.";
  const mean = all.reduce((sum, { seconds }) => sum + seconds.total, 0) / all.length;
  const rest = troubled ? `; something failed and was mended in ${troubled} of them` : "";
  return `A round takes ${span(mean)}, the mean of ${all.length}${rest}.`;
}
