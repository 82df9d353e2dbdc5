// The clients of one job: the class map, and the score of each personal model.

import { axis, Chart } from "../chart.js";
import { colour, curveColour } from "../colours.js";
import { element, setText, show } from "../element.js";
import { describeError, get, jobPath, LONG, request } from "../service.js";
import { withToken } from "../session.js";
import { count, countOf, measure, roundHalfEven } from "../formatting.js";
import { plainText } from "./method_changes.js";
import { describeAxis, isLowerBetter, isShare, METRICS } from "../metrics.js";

const SCORES = "personal.csv";
const TENTH = 0.1;

const MOST_NAMES = 30; // on an axis; more of them overlap

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

export function clients(job, records, signal) {
  const note = element("p", { class: "soft", id: "clients-note", role: "status" });
  const legend = makeLegend();
  let mapNote = "";
  const map = figure("class-map", "Examples of each class by client", signal, (found) => {
    const groups = findGroups(records, found);
    legend.update(findLargest(found.counts), Boolean(groups));
    return drawClassMap(found, groups);
  }, legend.root);
  const scores = figure("client-scores", "Score of each client's personal model, from worst to best", signal, (rows) => drawScores(rows, map.found?.names));
  const details = element("details", { on: { toggle: () => details.open && read() } },
    element("summary", {}, element("h2", {}, "Clients")), note, element("div", { class: "pair" }, scores.root, map.root));

  async function read() {
    map.draw(); // the algorithm may have reported other clusters since
    setText(note, "Reading the examples of each client …");
    // The examples stay as they are; the scores are those of the last evaluation.
    const notes = await Promise.all([map.found ? mapNote : attempt(async () => (mapNote = await readMap(map))), attempt(() => readScores(scores))]);
    setText(note, notes.filter(Boolean).join(" "));
  }

  // An error of one chart becomes a note; the other chart is still drawn.
  async function attempt(work) {
    try {
      return await withToken(work);
    } catch (error) {
      return signal.aborted ? "" : `${describeError(error)}.`;
    }
  }

  async function readMap(target) {
    const found = await get(jobPath(job().id, "/class-map"), { signal, seconds: LONG });
    target.show(found);
    scores.draw(); // with the names of the clients
    const left = found.clients - found.counts.length;
    return [...found.notes, left > 0 ? `The picture shows the first ${found.counts.length} of ${count(found.clients)} clients` : ""].filter(Boolean).map((text) => `${text}.`).join(" ");
  }

  async function readScores(target) {
    const { artifacts } = await get(jobPath(job().id, "/artifacts"), { signal });
    if (!artifacts.some(({ name }) => name === SCORES)) return "";
    const text = await (await request(jobPath(job().id, `/artifacts/${SCORES}`), { signal })).text();
    target.show(parse(text));
    return "";
  }
  return { root: element("section", { class: "clients" }, details) };
}

// The colours of the class map: a bar from 0 to the most examples of one class at one client.
function makeLegend() {
  const bar = element("span", { class: "bar" });
  const most = element("span");
  const root = element("p", { class: "soft scale", "aria-hidden": "true" }, "0", bar, most);
  return { root, update: (largest, isClustered) => {
    setText(most, `${count(largest)} examples`);
    bar.classList.toggle("clusters", isClustered);
  } };
}

// Row by row, because some browsers take at most 65,536 arguments.
const findLargest = (counts) => counts.reduce((most, row) => Math.max(most, ...row), 1);

// A chart that is hidden until it has data.
function figure(id, head, signal, drawing, legend = null) {
  const picture = element("div", { class: "chart", id, role: "img", "aria-labelledby": `${id}-head ${id}-words` });
  const words = element("p", { class: "soft", id: `${id}-words` });
  const made = { root: element("div", { hidden: true }, element("h3", { id: `${id}-head` }, head), legend, picture, words), found: null };
  const chart = new Chart(picture, words, () => drawing(made.found), signal);
  made.draw = () => made.found && chart.draw();
  made.show = (found) => {
    made.found = found;
    show(made.root, true);
    chart.draw();
  };
  return made;
}

// The groups of the clients: the cluster of each, if the algorithm reports one for every client of the map; else
// attackers and others, if there are attackers; else null.
function findGroups({ method: { clusters } }, { counts, attackers = [] }) {
  if (clusters && clusters.length >= counts.length) {
    const describe = (label, members) => `${label} (${countOf(members.length, "client")})`;
    return { labels: clusters, title: (label) => `cluster ${label}`, order: "by cluster", words: "Clusters found by the algorithm", describe };
  }
  if (!attackers.length) return null;
  const labels = counts.map((_, client) => (attackers.includes(client) ? 1 : 0));
  const describe = (label, members) => (label ? members.join(", ") : "");
  return { labels, title: (label) => ["other clients", "attackers"][label], order: "attackers last", words: "Malicious clients", describe };
}

// The clients of a group are neighbours and have the colour of the group.
function drawClassMap({ classes, counts, distances, names = [] }, groups) {
  const order = counts.map((_, client) => client);
  if (groups) order.sort((a, b) => groups.labels[a] - groups.labels[b] || a - b);
  const largest = findLargest(counts);
  const kinds = groups ? [...new Set(order.map((client) => groups.labels[client]))] : [null];
  const traces = kinds.map((kind, index) => {
    const places = order.map((client, place) => [client, place]).filter(([client]) => kind === null || groups.labels[client] === kind);
    return makeCells({ classes, counts, distances, names, largest }, places, groups ? groups.title(kind) : null, curveColour(index));
  });
  const layout = {
    hovermode: "closest", margin: { l: 48, r: 10, t: groups ? 34 : 10, b: 40 }, showlegend: Boolean(groups),
    xaxis: axis(groups ? `clients, ${groups.order}` : "client", { showgrid: false, showticklabels: !groups }),
    yaxis: axis("", { type: "category", autorange: "reversed", showgrid: false }),
  };
  if (names.length && names.length <= MOST_NAMES && !groups) {
    Object.assign(layout.xaxis, { tickvals: order, ticktext: names.map((name) => plainText(name)), automargin: true });
  }
  return { traces, layout, words: describeClassMap(counts, distances) + describeGroups(groups, kinds) };
}

function makeCells({ classes, counts, distances, names, largest }, places, title, hue) {
  const ofGroup = title === null ? "" : `, ${title}`;
  return {
    // With gaps the library draws single cells; without gaps it needs a style that the page's security policy forbids.
    type: "heatmap", xgap: counts.length > 60 ? 0.4 : 1, ygap: 1, x: places.map(([, place]) => place), y: classes.map((name) => plainText(name, Infinity)),
    z: classes.map((_, index) => places.map(([client]) => counts[client][index])), name: title ?? "", showlegend: title !== null,
    customdata: classes.map(() => places.map(([client]) => [labelClient(client, names), distances[client]])),
    colorscale: [[0, colour("--sheet")], [1, hue]], zmin: 0, zmax: largest, showscale: false,
    hovertemplate: `%{customdata[0]}${ofGroup}, class %{y}: %{z} examples<br>distance to the class distribution of all clients %{customdata[1]:.3f}<extra></extra>`,
  };
}

const labelClient = (client, names = []) => (names[client] === undefined ? `client ${client}` : `${plainText(names[client])} (client ${client})`);

function describeGroups(groups, kinds) {
  if (!groups) return "";
  const members = (kind) => groups.labels.flatMap((label, client) => (label === kind ? [client] : []));
  return ` ${groups.words}: ${kinds.map((kind) => groups.describe(kind, members(kind))).filter(Boolean).join(", ")}.`;
}

function describeClassMap(counts, distances) {
  const sizes = counts.map((row) => row.reduce((sum, each) => sum + each, 0));
  const apart = mean(distances).toFixed(3);
  return `Each client holds ${count(Math.min(...sizes))} to ${count(Math.max(...sizes))} examples; at most ${count(findLargest(counts))} examples of one class. Mean earth mover's distance between a client's class distribution and the class distribution of all clients: ${apart}.`;
}

function parse(text) {
  const [head, ...lines] = text.trim().split(/\r?\n/).map((line) => line.split(","));
  const at = (name) => head.indexOf(name);
  const column = (kind) => (kind === "accuracy" ? "correct" : kind);
  const kind = Object.keys(METRICS).find((each) => head.includes(column(each))) ?? "loss";
  const rows = lines.map((line) => ({ client: line[at("client")], tests: Number(line[at("tests")]), read: Number(line[at(column(kind))]), kind }));
  const sign = isLowerBetter(kind) ? -1 : 1;
  return rows.filter(({ tests }) => tests > 0).map((row) => ({ ...row, value: kind === "accuracy" ? row.read / row.tests : row.read }))
    .filter(({ value }) => Number.isFinite(value)) // a client with one class has no AUROC
    .sort((a, b) => sign * (a.value - b.value));
}

function drawScores(rows, names) {
  if (!rows.length) return { traces: [], layout: {}, words: "No client has a score." };
  const worst = Math.max(1, roundHalfEven(TENTH * rows.length));
  const kind = rows[0].kind;
  const write = (value) => measure(kind, value);
  const trace = {
    type: "bar", x: rows.map((_, place) => place + 1), y: rows.map(({ value }) => value), text: rows.map(({ client, read, tests }) => `${labelClient(client, names)}: ${kind === "accuracy" ? `${count(read)} of ${count(tests)} predictions correct` : `${count(tests)} predictions`}`),
    textposition: "none", marker: { color: rows.map((_, place) => (place < worst ? colour("--bad") : curveColour(0))) },
    hovertemplate: "%{text}, %{y:.4f}<extra></extra>",
  };
  const layout = {
    hovermode: "closest", bargap: rows.length > 60 ? 0 : 0.15, margin: { l: 48, r: 14, t: 10, b: 40 },
    xaxis: axis("clients, from worst to best"), yaxis: isShare(kind) ? axis("", { range: [0, 1], tickformat: ".1f" }) : axis(describeAxis(kind), { tickformat: ".3~s" }),
  };
  const values = rows.map(({ value }) => value);
  const least = mean(values.slice(0, worst));
  return { traces: [trace], layout, words: `Mean over all clients ${write(mean(values))}; mean over the worst 10 % of clients (red bars) ${write(least)}; worst client ${write(values[0])}, best client ${write(values.at(-1))}.` };
}
