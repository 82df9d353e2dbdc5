// Makes and changes elements. Names from people or algorithms are inserted as text, never as markup.

const DRAWN = new Set(["svg", "g", "path", "text", "title"]); // elements of a picture

// `element("a", { class: "soft", href: "#/jobs", on: { click } }, "text", child)`: false, null and undefined are left out.
export function element(tag, attributes = {}, ...children) {
  const made = DRAWN.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name === "on") Object.entries(value).forEach(([type, listener]) => made.addEventListener(type, listener));
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  append(made, children);
  return made;
}

export function append(parent, children) {
  parent.append(...children.flat().filter((child) => child != null && child !== false));
}

// Changes only a different text, so that screen readers do not repeat it.
export function setText(target, text) {
  if (target.textContent !== String(text)) target.textContent = text;
}

// Replaces the children only if they differ, so that focus and selection survive. After a replacement the same link or
// control gets the focus again.
export function replaceIfChanged(target, ...children) {
  const fresh = element("div");
  append(fresh, children);
  const same = fresh.childNodes.length === target.childNodes.length && [...fresh.childNodes].every((child, index) => child.isEqualNode(target.childNodes[index]));
  if (same) return;
  const held = target.contains(document.activeElement) ? sign(document.activeElement) : null;
  target.replaceChildren(...fresh.childNodes);
  if (held) [...target.querySelectorAll("a, button, input, select")].find((each) => sign(each) === held)?.focus();
}

const sign = (control) => [control.tagName, control.getAttribute("href"), control.name, control.getAttribute("aria-label"), control.textContent].join(" ");

export function show(target, visible) {
  target.hidden = !visible;
}

export function badge(target, state) {
  target.className = "state";
  if (target.dataset.state !== state) target.dataset.state = state;
  setText(target, state.toLowerCase());
}

// A button that ignores clicks until its action has ended. It is not disabled meanwhile, because it would lose the focus.
export function button(label, click, attributes = {}) {
  const once = async (event) => {
    if (made.hasAttribute("aria-disabled")) return;
    made.setAttribute("aria-disabled", "true");
    try {
      await click(event);
    } finally {
      made.removeAttribute("aria-disabled");
    }
  };
  const made = element("button", { type: "button", ...attributes, on: { click: once } }, label);
  return made;
}

// A label with its control: `wrapWithLabel("Metric", select)`.
export function wrapWithLabel(text, control, attributes = {}) {
  return element("label", { class: "labelled", ...attributes }, element("span", {}, text), control);
}

// New options may come while jobs run; the choice stays.
export function offer(control, options, value) {
  if (options.map(([key]) => key).join("\n") !== [...control.options].map((option) => option.value).join("\n")) {
    control.replaceChildren(...options.map(([key, text]) => element("option", { value: key }, text)));
  }
  control.value = value;
}

export function select(options, value, change, attributes = {}) {
  const made = element("select", { ...attributes, on: { change: () => change(made.value) } }, options.map(
    ([key, text]) => element("option", { value: key }, text ?? key),
  ));
  made.value = value;
  return made;
}
