// The rows "Vary": a field of the form and its values. Every combination is one job.

import { copy } from "../clipboard.js";
import { button, element, offer, setText, show } from "../element.js";
import { makeAxis } from "../sweep.js";

// `changed()` is called after every change. `axes()` gives the axes that have a field and values.
export function vary(changed) {
  const rows = element("div", { class: "vary-rows" });
  const add = button("Vary a field", addRow, { id: "vary-add" });
  const words = element("span", { class: "soft", id: "vary-words" }, "");
  const text = element("pre", { id: "sweep-yaml", tabindex: "0", "aria-label": "The same jobs as a sweep file" });
  const copying = button("Copy", () => copy(text.textContent, "The sweep file is copied", text), { id: "copy-sweep" });
  const file = element("details", { id: "sweep-file", hidden: true }, element("summary", {}, "The same as a file for fedsim sweep"), copying, text);
  let fields = []; // [path, type] of the fields in the form
  let made = 0; // rows

  function addRow() {
    const fault = `vary-fault-${made += 1}`;
    const path = element("select", { "aria-label": "Field to vary", on: { change: () => changeRow() } });
    const values = element("input", { class: "values", placeholder: "values, such as 0.05, 0.1", autocomplete: "off", spellcheck: "false", "aria-label": "Values, separated by commas", "aria-describedby": fault, on: { input: changeRow } });
    const remove = button("×", () => {
      row.remove();
      add.focus();
      changed();
    }, { class: "quiet", "aria-label": "Do not vary this field" });
    const row = element("div", { class: "vary field" }, element("div", { class: "vary-line" }, path, values, remove), element("p", { class: "fault", id: fault }));
    function changeRow() {
      row.dataset.path = path.value;
      changed();
    }
    offerFields(path);
    rows.append(row);
    path.focus();
    changed();
  }

  // Keeps a chosen field that the form does not have any more: the check says what is wrong.
  function offerFields(path) {
    const chosen = path.value;
    const paths = fields.map(([name]) => name);
    const all = ["", ...paths, ...(chosen && !paths.includes(chosen) ? [chosen] : [])];
    offer(path, all.map((name) => [name, name || "choose a field"]), chosen);
  }

  function update(found) {
    fields = found;
    rows.querySelectorAll("select").forEach(offerFields);
  }

  const read = () => [...rows.children].map((row) => {
    const [path, values] = [row.querySelector("select").value, row.querySelector(".values").value];
    return { row, ...makeAxis(path, values, new Map(fields).get(path)) };
  });
  const axes = () => read().filter(({ path, values }) => path && values.length).map(({ path, values }) => ({ path, values }));

  // Says what is missing in the rows; returns whether all rows are whole.
  function check() {
    const found = read();
    const faults = found.map(({ row, path, values }, index) => {
      const isRepeated = path && found.findIndex((each) => each.path === path) < index;
      const fault = !path ? "choose a field" : !values.length ? "give at least one value" : isRepeated ? "this field is varied above" : "";
      setText(row.querySelector(".fault"), fault);
      if (fault) row.querySelector(path ? ".values" : "select").setAttribute("aria-invalid", "true");
      return fault;
    });
    return !faults.some(Boolean);
  }

  // Shows the group of the jobs, and its file; "" for a single job.
  function showGroup(name, yaml) {
    setText(words, `every combination of the values, with every seed, is a job${name && ` of the group ${name}`}`);
    show(file, Boolean(yaml));
    setText(text, yaml);
  }
  const root = element("section", { "aria-labelledby": "vary-head", class: "vary-section" }, element("div", { class: "title" }, element("h2", { id: "vary-head" }, "Vary"),
    words, add), rows, file);
  return { root, axes, check, update, show: showGroup };
}
