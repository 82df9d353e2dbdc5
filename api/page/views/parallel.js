// Parallel coordinates: one line for each run, one axis for each field that differs, and the score as the last axis.

import { copy } from "../clipboard.js";
import { button, element, replaceIfChanged, select, show, wrapWithLabel } from "../element.js";
import { formatMetricName, measure, number } from "../formatting.js";
import { yaml } from "../yaml.js";

const SKIPPED = new Set(["seed", "stop.round", "evaluation.test", "evaluation.personal", "checkpoint.every"]); // axes without a choice
const HEIGHT = 260;
const TOP = 46; // above the axes: two lines of text
const BOTTOM = 16;
const SIDE = 116; // beside the first and the last axis
const NARROW = 110; // the least distance of two axes
const LOGARITHMIC = 20; // numbers whose largest is so many times the smallest are on a logarithmic axis
const MOST_TICKS = 6;
const MOST_LETTERS = 18;
const LINE = 13; // the least distance of two texts

// `update(found, jobs)` takes the answer of `GET /comparison` and the jobs by id.
export function parallelCoordinates(signal) {
  const state = { runs: [], axes: [], chosen: null };
  const picture = element("svg", { class: "parallel", role: "img", "aria-labelledby": "parallel-head parallel-words" });
  const words = element("p", { class: "soft", id: "parallel-words" });
  const choose = (id) => {
    state.chosen = id;
    draw();
  };
  const runs = select([], "", choose, { name: "run" });
  const link = element("a", { id: "parallel-job" }, "Open the job");
  const yamlButton = button("Copy spec as YAML", () => copy(yaml(find(runs.value).job.spec), "The spec is copied"), { id: "parallel-yaml" });
  const root = element("section", { id: "parallel", "aria-labelledby": "parallel-head", hidden: true },
    element("div", { class: "title" }, element("h2", { id: "parallel-head" }, "Fields and score"),
      element("div", { class: "controls" }, wrapWithLabel("Run, best first", runs), element("div", { class: "row" }, link, yamlButton))),
    element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Lines of the runs" }, picture), words);
  const find = (id) => state.runs.find(({ job }) => job.id === id);

  function draw() {
    if (root.hidden) return;
    const width = Math.max(picture.parentElement.clientWidth, 2 * SIDE + NARROW * (state.axes.length - 1));
    const [best] = state.runs;
    const chosen = find(state.chosen) ?? best;
    runs.value = chosen.job.id;
    link.setAttribute("href", `#/jobs/${chosen.job.id}`);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("width", width);
    picture.setAttribute("height", HEIGHT);
    const place = (index) => SIDE + (index * (width - 2 * SIDE)) / Math.max(1, state.axes.length - 1);
    const line = (run) => `M${state.axes.map((axis, index) => `${place(index).toFixed(1)} ${axis.place(run).toFixed(1)}`).join("L")}`;
    const drawn = state.runs.map((run, rank) => {
      const marks = ["run", run === best && "best", run === chosen && "chosen"].filter(Boolean);
      const opacity = marks.length > 1 ? null : (0.75 - (0.55 * rank) / state.runs.length).toFixed(2);
      return element("path", { class: marks.join(" "), d: line(run), "stroke-opacity": opacity, on: { click: () => choose(run.job.id) } },
        element("title", {}, describe(run, state.axes)));
    }).reverse(); // the best one on top
    picture.replaceChildren(...drawn, ...state.axes.map((axis, index) => drawAxis(axis, place(index), index === state.axes.length - 1)));
  }

  function update({ metric, lower_is_better: isLowerBetter, differences, groups }, jobs) {
    const found = listRuns(metric, isLowerBetter, groups, jobs);
    const axes = differences.filter(({ field }) => !SKIPPED.has(field)).map((difference) => makeAxis(difference, found.runs)).filter(({ size }) => size > 1);
    const rounds = makeAxis({ field: "rounds", values: [] }, found.runs, ({ job }) => job.rounds_done);
    show(root, found.runs.length > 1 && axes.length > 0);
    if (root.hidden) return;
    const score = { ...makeAxis({ field: formatMetricName(found.metric), values: [] }, found.runs, (run) => run.score), write: (value) => measure(found.metric, value) };
    Object.assign(state, { runs: found.runs, axes: [...axes, ...(rounds.size > 1 && found.isSearch ? [rounds] : []), score] });
    replaceIfChanged(runs, found.runs.map((run, rank) => element("option", { value: run.job.id }, `${rank + 1}. ${describe(run, state.axes)}`)));
    const left = found.unscored ? ` Runs without a score are left out: ${found.unscored}.` : "";
    replaceIfChanged(words, `${formatMetricName(found.metric)} of ${found.runs.length} runs; ${isLowerBetter ? "lower" : "higher"} is better. Best: ${describe(found.runs[0], state.axes)}.${left}`);
    draw();
  }

  const sizes = new ResizeObserver(draw);
  sizes.observe(root);
  signal.addEventListener("abort", () => sizes.disconnect());
  return { root, update };
}

// The runs with a score, best first: on the validation set if all of them have it. A search prefers trials of more rounds.
function listRuns(metric, isLowerBetter, groups, jobs) {
  const all = groups.flatMap(({ members }, group) => members.map((id) => ({ job: jobs.get(id), group }))).filter(({ job }) => job);
  const isSearch = all.every(({ job }) => job.labels.trial);
  const trials = isSearch ? all.filter(({ job }) => job.labels.trial !== "best") : all;
  const scored = trials.filter(({ job }) => Object.keys(job.last_metrics).length);
  const names = scored.flatMap(({ job }) => Object.keys(job.last_metrics));
  const validated = names.find((name) => name.includes("_validation_") && name.replace("_validation_", "_") === metric
    && scored.every(({ job }) => typeof job.last_metrics[name] === "number"));
  const chosen = validated ?? metric;
  const runs = scored.map((run) => ({ ...run, score: run.job.last_metrics[chosen] })).filter(({ score }) => typeof score === "number");
  const sign = isLowerBetter ? 1 : -1;
  runs.sort((one, two) => (isSearch ? two.job.rounds_done - one.job.rounds_done : 0) || sign * (one.score - two.score));
  return { runs, metric: chosen, isSearch, unscored: trials.length - runs.length };
}

// An axis with a place for each run: numbers on a linear or logarithmic scale, other values as categories.
function makeAxis({ field, values: texts }, runs, read = ({ job }) => readField(job.spec, field)) {
  const values = runs.map(read);
  const height = HEIGHT - TOP - BOTTOM;
  // Other values are texts, mappings, or whole numbers that are too large for a scale.
  if (values.every((value) => typeof value === "number")) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const isLog = low > 0 && high / low >= LOGARITHMIC;
    const scale = isLog ? Math.log : (value) => value;
    const place = (value) => TOP + height * (high > low ? 1 - (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5);
    const own = [...new Set(values)].sort((one, two) => one - two);
    const middle = isLog ? listPowers(low, high) : [(low + high) / 2];
    return { field, isLog, size: own.length, of: read, write: number, ticks: own.length > MOST_TICKS ? [low, ...middle, high] : own, at: place, place: (run) => place(read(run)) };
  }
  const write = (run) => texts[run.group];
  const words = [...new Set(runs.map(write))].sort((one, two) => one.localeCompare(two, "en", { numeric: true }));
  const place = (word) => TOP + height * (words.length > 1 ? 1 - words.indexOf(word) / (words.length - 1) : 0.5);
  return { field, isLog: false, size: words.length, of: write, write: (word) => word, ticks: words, at: place, place: (run) => place(write(run)) };
}

// The powers of ten between two numbers.
function listPowers(low, high) {
  const first = Math.floor(Math.log10(low)) + 1;
  return Array.from({ length: Math.max(0, Math.ceil(Math.log10(high)) - first) }, (_, step) => 10 ** (first + step));
}

// The value at a path, such as `local.lr`; undefined for `algorithm`, whose value is a mapping.
function readField(spec, field) {
  return field.split(".").reduce((value, key) => value?.[key], spec);
}

function drawAxis(axis, x, isLast) {
  const aside = isLast ? 8 : -8;
  const name = axis.field.split(".").at(-1);
  const end = name.length > MOST_LETTERS ? name.lastIndexOf(" ", MOST_LETTERS) : -1; // a long name has two lines
  const lines = end > 0 ? [name.slice(0, end), name.slice(end + 1)] : [name, axis.isLog ? "log scale" : ""];
  return element("g", { class: "axis" }, element("path", { d: `M${x} ${TOP}V${HEIGHT - BOTTOM}` }), element("title", {}, axis.field),
    lines.map((text, index) => element("text", { class: index ? "" : "name", x, y: 16 + 15 * index, "text-anchor": "middle" }, cut(text))),
    spread(axis).map((value) => element("text", { x: x + aside, y: axis.at(value) + 4, "text-anchor": isLast ? "start" : "end" }, cut(axis.write(value)))));
}

// The ticks whose texts do not cover each other.
function spread({ ticks, at }) {
  return ticks.reduce((kept, value) => (kept.length && Math.abs(at(kept.at(-1)) - at(value)) < LINE ? kept : [...kept, value]), []);
}

const cut = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);
const describe = (run, axes) => axes.map(({ field, of, write }) => `${field} ${write(of(run))}`).join(", ");
