// The shell: opens the view that the address names, shows the navigation, and switches between light and dark.

import { element, setText } from "./element.js";
import { forgetSources } from "./session.js";

const VIEWS = {
  jobs: () => import("./views/jobs.js"),
  job: () => import("./views/job.js"),
  new: () => import("./views/new_job.js"),
  compare: () => import("./views/compare.js"),
  cluster: () => import("./views/cluster.js"),
};
const THEMES = { auto: "same as the system", light: "light", dark: "dark" };
const THEME_KEY = "fedsim-theme";

const main = document.getElementById("main");
let leave = new AbortController();
let shown = null;

// Reads the address, such as `#/jobs/ID` or `#/compare?jobs=a,b`: the view, the id, the query.
function address() {
  const old = location.hash.match(/^#job=([a-z0-9]+)$/);
  if (old) location.replace(`#/jobs/${old[1]}`);
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").filter(Boolean).map(decode);
  const view = name === "jobs" && rest.length ? "job" : name ?? "jobs";
  return { view, section: name ?? "jobs", id: rest[0], query: new URLSearchParams(query) };
}

// An address with a % that stands for no sign is taken as it is.
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function open() {
  const { view, section, id, query } = address();
  const held = document.activeElement?.name ?? "";
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  forgetSources();
  document.querySelectorAll("nav a").forEach((link) => {
    if (link.dataset.view === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const root = element("div", { class: `view view-${view}` });
  // An unknown view asks the service nothing, so that it cannot say whether the service answers.
  const isKnown = Object.hasOwn(VIEWS, view);
  document.getElementById("connection").classList.toggle("unknown", !isKnown);
  try {
    if (!isKnown) throw new Error(`the page has no view ${JSON.stringify(section)}`);
    const module = await VIEWS[view]();
    if (signal.aborted) return;
    main.replaceChildren(root);
    document.title = `${module.title} · fedsim`;
    module.open(root, { id, query, signal });
  } catch (error) {
    document.title = "fedsim";
    main.replaceChildren(element("p", { class: "message bad" }, `Cannot show this view: ${error.message}. `,
      element("a", { href: "#/jobs" }, "Go to the jobs")));
  }
  focus(view, held);
  shown = view;
}

// A new view starts at its top and takes the focus, so that screen readers read it. If the same view opens again, as after
// a filter, the same control keeps the focus. The first view takes no focus.
function focus(view, held) {
  if (view === shown) {
    main.querySelector(`[name="${CSS.escape(held)}"]`)?.focus();
  } else if (shown) {
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function showTheme() {
  const theme = localStorage.getItem(THEME_KEY) ?? "auto";
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  setText(button, { auto: "◐", light: "☀", dark: "☾" }[theme]);
  button.setAttribute("aria-label", `Colours: ${THEMES[theme]}`);
  button.title = `Colours: ${THEMES[theme]}`;
  window.dispatchEvent(new Event("themechange"));
}

document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const now = names.indexOf(document.documentElement.dataset.theme);
  localStorage.setItem(THEME_KEY, names[(now + 1) % names.length]);
  showTheme();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // Following the link would change the address, which names the view.
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", open);
showTheme();
open();
