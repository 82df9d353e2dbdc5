// The claims of a paper, judged by the compared jobs if they are runs of a result table (`GET /claims`).

import { element } from "../element.js";
import { countOf } from "../formatting.js";

const HEADS = ["Claim", "Cells", "Verdict", "Figures", "Difference, 95 % interval", "p (Holm)"];

// The table of the jobs' labels, and the labels by which the service finds all jobs of its scale; null if they have none.
export function findTable(jobs) {
  const all = jobs.map(({ labels = {} }) => `${labels.table ?? ""}\n${labels.preset ?? ""}`);
  const [table, preset] = (all[0] ?? "").split("\n");
  return table && preset && new Set(all).size === 1 ? [`table=${table}`, `preset=${preset}`] : null;
}

// `judged` is the answer of the service.
export function claimsCard(judged) {
  const { title, finished, runs, claims, command } = judged;
  const words = `${title}: ${finished} of ${countOf(runs, "run")}. Each difference is paired by seed. Held: its interval lies on the claim's `
    + "side of 0, or of the claim's own margin; reversed: on the other side.";
  const rows = claims.map((claim, index) => {
    const isFirst = index === 0 || claims[index - 1].claim !== claim.claim;
    const paper = [claim.place, claim.paper].filter(Boolean).join("; ");
    return element("tr", {},
      element("th", { scope: "row" }, isFirst ? [claim.sentence, paper ? element("p", { class: "soft" }, `In the paper: ${paper}.`) : ""] : element("span", { class: "for-readers" }, claim.sentence)),
      [claim.cells, [element("strong", {}, claim.verdict), claim.remark ? ` (${claim.remark})` : ""], claim.figures, claim.difference, claim.p].map((cell) => element("td", {}, cell)));
  });
  const head = element("thead", {}, element("tr", {}, HEADS.map((text) => element("th", { scope: "col" }, text))));
  return [element("p", { class: "soft" }, words), element("table", { id: "claims" }, head, element("tbody", {}, rows)),
    element("p", { class: "soft" }, "Command: ", element("code", {}, command))];
}
