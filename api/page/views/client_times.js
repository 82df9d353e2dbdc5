// When the clients of the last rounds were busy in simulated time, and for whom the server waited.

import { axis, Chart } from "../chart.js";
import { colour, curveColour } from "../colours.js";
import { element, show } from "../element.js";
import { span } from "../formatting.js";

const MOST_BARS = 60; // as in api/reports/client_times.py

export function clientTimes(records, signal) {
  const picture = element("div", { class: "chart", id: "client-times", role: "img", "aria-labelledby": "client-times-head client-times-words" });
  const words = element("p", { class: "soft", id: "client-times-words" });
  const root = element("section", { "aria-labelledby": "client-times-head", hidden: true },
    element("h2", { id: "client-times-head" }, "Clients in simulated time"), picture, words);
  const chart = new Chart(picture, words, () => drawTimes(selectLastRounds(records.all)), signal);
  return {
    root,
    draw: () => {
      const hasTimes = selectLastRounds(records.all).length > 0;
      show(root, hasTimes);
      if (hasTimes) chart.draw();
    },
  };
}

// The last rounds with at most MOST_BARS clients together, but at least one round. Records of older versions have no times.
function selectLastRounds(all) {
  const found = [];
  let bars = 0;
  for (let index = all.length - 1; index >= 0; index -= 1) {
    const clients = all[index].clock?.timeline?.length ?? 0;
    if (!clients || (found.length && bars + clients > MOST_BARS)) break;
    found.unshift(all[index]);
    bars += clients;
  }
  return found;
}

function findKind([client, , , counts], { clock }) {
  if (!counts) return "not counted";
  return client === clock.waited_for ? "waited for" : "counted";
}

// A bar is a thick line from the start to the end, with a gap before the next one.
function drawTimes(rounds) {
  const colours = { counted: curveColour(0), "waited for": curveColour(1), "not counted": colour("--line") };
  const traces = Object.entries(colours).map(([kind, shade]) => {
    const bars = rounds.flatMap((record) => record.clock.timeline.filter((time) => findKind(time, record) === kind)
      .map(([client, start, end]) => ({ client: String(client), start, end, round: record.round })));
    return {
      name: kind, type: "scatter", mode: "lines", line: { width: 7, color: shade }, connectgaps: false, hovertemplate: "%{text}",
      x: bars.flatMap(({ start, end }) => [start, end, null]),
      y: bars.flatMap(({ client }) => [client, client, null]),
      text: bars.flatMap(({ client, start, end, round }) => Array(3).fill(`client ${client}, round ${round}: ${span(end - start)}`)),
    };
  }).filter(({ x }) => x.length);
  const clients = [...new Set(rounds.flatMap(({ clock }) => clock.timeline.map(([client]) => client)))].sort((a, b) => b - a);
  const shapes = rounds.map(({ clock }) => ({
    type: "line", x0: clock.total, x1: clock.total, yref: "paper", y0: 0, y1: 1, line: { color: colour("--line"), width: 1, dash: "dot" },
  }));
  const layout = {
    showlegend: true, hovermode: "closest", shapes, margin: { l: 56, r: 14, t: 34, b: 40 },
    xaxis: axis("simulated time (s)"), yaxis: axis("client", { type: "category", showgrid: false, categoryorder: "array", categoryarray: clients.map(String) }),
  };
  return { traces, layout, words: describeTimes(rounds) };
}

function describeTimes(rounds) {
  const last = rounds.at(-1);
  const name = rounds.length > 1 ? `Rounds ${rounds[0].round} to ${last.round}` : `Round ${last.round}`;
  const waited = last.clock.waited_for;
  const rest = waited === null ? "" : ` Round ${last.round} ended with client ${waited}.`;
  return `${name}; a dotted line ends each round. At most 20 clients of a round are shown, those that ended last.${rest}`;
}
