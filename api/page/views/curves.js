// The curves of one job, with a choice of the curve, of a second axis and of the horizontal axis.

import { axis, Chart, MOST_POINTS } from "../chart.js";
import { curveColour } from "../colours.js";
import { element, offer, wrapWithLabel, select, show } from "../element.js";
import { listMethodChanges } from "../method_curves.js";
import { AXES, choices, listAxes, sides } from "../records.js";
import { accuracy, FINAL, number } from "../formatting.js";
import { makeChangeList, makeChangeShapes, makeChangeTrace, plainText } from "./method_changes.js";

const NONE = "";
const OF_CLIENTS = /^method\..*clients$/;
const MARGINS = 62; // pixels, left and right of the picture
const SECOND_AXIS_WIDTH = 56; // pixels
const LARGE = 1000; // values from here on have SI prefixes; smaller ones would have "m" for thousandths
const RIGHT_MARGIN_FACTOR = 1.02; // to the right of the last round

const listNames = (entries) => entries.map(([key, { name }]) => [key, name]);

// `job()` returns the job, whose spec has the rounds of the evaluations.
export function curves(records, job, signal) {
  const chosen = { what: null, along: "rounds", whole: true, beside: null };
  const set = (changes) => {
    Object.assign(chosen, changes);
    chart.draw();
  };
  const picture = element("div", { class: "chart", id: "chart", role: "img", "aria-labelledby": "curves-head chart-words" });
  const words = element("p", { class: "soft", id: "chart-words" });
  const changeList = makeChangeList();
  const what = select([["accuracy", "Accuracy"]], "accuracy", (value) => set({ what: value }), { name: "what" });
  const beside = select([[NONE, "none"]], NONE, (value) => set({ beside: value }), { name: "beside" });
  const besides = wrapWithLabel("Second axis", beside, { hidden: true });
  const along = select(listNames(listAxes(false)), "rounds", (value) => set({ along: value }), { name: "along" });
  const whole = element("input", { type: "checkbox", name: "whole", checked: true, on: { change: () => set({ whole: whole.checked }) } });
  const scale = wrapWithLabel("Scale from 0 to 1", whole, { class: "labelled beside" });
  const root = element("section", { class: "curves", "aria-labelledby": "curves-head" },
    element("div", { class: "title" }, element("h2", { id: "curves-head" }, "Curves"),
      element("div", { class: "controls" }, wrapWithLabel("Curve", what), besides, wrapWithLabel("Horizontal axis", along),
        scale)),
    picture, words, changeList.root);

  const chart = new Chart(picture, words, () => {
    const all = choices(records);
    const aside = sides(records);
    const key = all[chosen.what] ? chosen.what : findFirstCurve(all, records);
    offer(what, listNames(Object.entries(all)), key);
    offer(along, listNames(listAxes(Boolean(records.last?.clock))), chosen.along);
    // The second axis shows a value of the algorithm at first, such as the number of frozen clients or a temperature.
    const sought = [chosen.beside, Object.keys(aside).find((key) => OF_CLIENTS.test(key)), Object.keys(aside)[0]];
    const side = sought.find((key) => key === NONE || aside[key]) ?? NONE;
    offer(beside, [[NONE, "none"], ...listNames(Object.entries(aside))], side);
    show(besides, Object.keys(aside).length > 0);
    const found = all[key];
    show(scale, found?.share ?? true);
    const changes = listMethodChanges(records);
    changeList.update(changes, records);
    const drawn = drawCurves(records, found, side === key ? undefined : aside[side], { ...chosen, changes, width: picture.clientWidth });
    const isScored = Object.values(all)[0].lines.length > 0;
    return { ...drawn, words: [drawn.words, isScored ? "" : describeEvaluation(job(), records)].filter(Boolean).join(". ") };
  }, signal);
  return { root, draw: () => chart.draw() };
}

// The main metric; before its first value a curve that has values already.
function findFirstCurve(all, { all: rounds }) {
  const [first] = Object.keys(all);
  const hasValues = (key) => all[key]?.lines.some(({ read }) => rounds.some((record, index) => typeof read(record, index) === "number"));
  return [first, "loss", "seconds"].find(hasValues) ?? first;
}

// When the first evaluation comes, or that none came.
function describeEvaluation({ state, spec, rounds_total: total }, { last }) {
  if (FINAL.has(state)) return "No round was evaluated.";
  const first = Math.min(spec.evaluation.every, total);
  return last?.round >= first ? "No round has been evaluated yet." : `The first evaluation comes after round ${first}.`;
}

function drawCurves(records, { lines, share, lower, axis: unit = "", write = share ? accuracy : number }, side, { along, whole, changes, width }) {
  const drawn = (all) => all.map((line) => ({ ...line, ...records.curve(line.read, along) })).filter(({ x }) => x.length);
  const shown = drawn(lines);
  const isLarge = shown.some(({ y }) => y.some((value) => Math.abs(value) >= LARGE));
  const format = share ? ".4f" : isLarge ? ".4~s" : ".4~g";
  const aside = shown.length && side ? drawn(side.lines) : [];
  const traces = [
    ...shown.map((line, index) => trace(line, { along, format, index })),
    ...aside.map((line, index) => ({
      ...trace(line, { along, format: ".4~g", index: shown.length + index }), mode: "lines", yaxis: "y2",
      line: { color: curveColour(shown.length + index), width: 1.5, dash: "dot", shape: "hv" },
    })),
  ];
  const places = records.along(along);
  const end = (shown.length && RIGHT_MARGIN_FACTOR * places.at(-1)) || 10;
  const named = traces.length;
  if (shown.length && changes.length) traces.push(makeChangeTrace(changes, places, shown[0].y[0]));
  const isShare = share && whole;
  const layout = {
    showlegend: named > 1,
    margin: { l: 48, r: 14, t: named > 1 ? 34 : 14, b: 40 },
    xaxis: axis(AXES[along].title, {
      ...AXES[along].ticks,
      // The texts of changes would stretch a range that the library chooses.
      range: [0, end],
    }),
    yaxis: axis(unit, isShare ? { range: [0, 1], tickformat: ".1f" } : { tickformat: share ? ".3~f" : isLarge ? ".3~s" : ".3~g" }),
    ...(aside.length ? { yaxis2: axis(plainText(side.name), { overlaying: "y", side: "right", showgrid: false, tickmode: "auto", rangemode: "tozero", tickformat: ".3~g" }) } : {}),
    ...makeChangeShapes(changes, places, { width: width - MARGINS - (aside.length ? SECOND_AXIS_WIDTH : 0), end }),
  };
  return { traces, layout, words: describeCurves(shown, write, lower, aside) };
}

function trace({ name, x, y, rounds }, { along, format, index }) {
  return {
    name: plainText(name), x, y, customdata: rounds, type: "scatter", cliponaxis: false,
    mode: x.length > MOST_POINTS ? "lines" : "lines+markers", marker: { size: 5 }, line: { color: curveColour(index), width: 2 },
    hovertemplate: `%{y:${format}}${along === "rounds" ? "" : " in round %{customdata}"}`,
  };
}

function describeCurves(shown, write, lower, aside) {
  const scores = shown.map(({ name, y, rounds }) => {
    const best = y.reduce((top, value, index) => ((lower ? value < y[top] : value > y[top]) ? index : top), 0);
    const end = `${name}: ${write(y.at(-1))} at round ${rounds.at(-1)}`;
    return lower !== undefined ? `${end}, best ${write(y[best])} at round ${rounds[best]}` : end;
  });
  const others = aside.map(({ name, y, rounds }) => `${name}: ${number(y[0])} at round ${rounds[0]}, ${number(y.at(-1))} at round ${rounds.at(-1)}`);
  return [...scores, ...others].join("; ");
}
