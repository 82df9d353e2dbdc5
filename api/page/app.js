// The shell: which view the address names, the navigation, light and dark.

import { element, setText } from "./element.js";
import { forgetSources } from "./session.js";

const VIEWS = {
  jobs: () => import("./views/jobs.js"),
  job: () => import("./views/job.js"),
  new: () => import("./views/new_job.js"),
  compare: () => import("./views/compare.js"),
  cluster: () => import("./views/cluster.js"),
};
const THEMES = { auto: "Light or dark: as the system", light: "Light", dark: "Dark" };
const THEME_KEY = "fedsim-theme";

const main = document.getElementById("main");
let leave = new AbortController();
let shown = null;

// `#/jobs/ID`, `#/compare?jobs=a,b`: the view, the rest of the path, the query.
function address() {
  const old = location.hash.match(/^#job=([a-z0-9]+)$/);
  if (old) location.replace(`#/jobs/${old[1]}`);
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").filter(Boolean).map(decodeURIComponent);
  const view = name === "jobs" && rest.length ? "job" : name ?? "jobs";
  return { view, section: name ?? "jobs", id: rest[0], query: new URLSearchParams(query) };
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
  try {
    if (!VIEWS[view]) throw new Error(`there is no view called ${section}`);
    const module = await VIEWS[view]();
    if (signal.aborted) return;
    main.replaceChildren(root);
    document.title = `${module.title} · fedsim`;
    module.open(root, { id, query, signal });
  } catch (error) {
    main.replaceChildren(element("p", { class: "message bad" }, `This view cannot be shown: ${error.message}. `,
      element("a", { href: "#/jobs" }, "To the jobs")));
  }
  focus(view, held);
  shown = view;
}

// Another view is begun at its top, and readers of the screen hear where the link has led. What was in hand stays in
// hand where the same view comes again, as after a filter. The first view is not jumped into.
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
  button.title = THEMES[theme];
  window.dispatchEvent(new Event("themechange"));
}

document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const now = names.indexOf(document.documentElement.dataset.theme);
  localStorage.setItem(THEME_KEY, names[(now + 1) % names.length]);
  showTheme();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address belongs to the views.
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", open);
showTheme();
open();
