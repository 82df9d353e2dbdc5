// What every view shares: the token dialog, questions, notices, and whether the service is being heard.

import { element, setText } from "./element.js";
import { hasToken, keepToken, RefusedError } from "./service.js";
import { pause } from "./waiting.js";

const NOTICE_SECONDS = 8;
const TOKEN = /^[\x20-\x7e]+$/; // what a header can carry, as a service looks at its own

const find = (id) => document.getElementById(id);
let openTokenRequest = null;
let sources = new Map();

// A view says for each thing that it listens to whether it is heard; leaving the view forgets them.
export function setConnection(source, there) {
  sources.set(source, there);
  const lost = [...sources.values()].includes(false);
  const text = lost ? "The connection to the service is lost; trying again …" : "Connected";
  setText(find("connection"), sources.size ? text : "Connecting …");
  find("connection").classList.toggle("lost", lost);
}

export function forgetSources() {
  sources = new Map();
}

function askForToken(again) {
  openTokenRequest ??= new Promise((resolve) => {
    const dialog = find("token-dialog");
    if (again) setText(find("token-note"), "The service did not accept this token.");
    find("token").value = "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    find("token-form").onsubmit = takeToken;
    dialog.addEventListener("close", () => {
      keepToken(find("token").value.trim());
      openTokenRequest = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return openTokenRequest;
}

// No request could carry another one, and nothing would be heard of the service any more.
function takeToken(event) {
  const given = find("token").value.trim();
  if (TOKEN.test(given)) return;
  event.preventDefault();
  const words = "This holds characters that no token has, such as a curly quote or one that is not seen: type it, or copy it again.";
  setText(find("token-note"), given ? words : "This is nothing but white space.");
  find("token").focus();
}

// Does `work`; where the service asks for a token, asks the reader for it and does it again.
export async function withToken(work) {
  for (let again = hasToken(); ; again = true) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof RefusedError) || error.status !== 401) throw error;
      await askForToken(again);
    }
  }
}

export const isAsking = () => openTokenRequest !== null;

// Resolves to whether the reader wants it.
export function confirm({ head, text, yes }) {
  const dialog = find("confirm");
  setText(find("confirm-head"), head);
  setText(find("confirm-text"), text);
  setText(find("confirm-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// A line that says what was done, or what went wrong, and leaves by itself.
export function notice(text, bad = false) {
  const line = element("p", { class: bad ? "notice bad" : "notice" }, text);
  find("notices").append(line);
  setTimeout(() => line.remove(), NOTICE_SECONDS * 1000);
}

// Does `work` again and again, after `every()` milliseconds, until `signal` aborts; not while the page is hidden or a token
// is asked for.
export async function repeat(source, every, signal, work) {
  while (!signal.aborted) {
    if (!document.hidden && !isAsking()) {
      try {
        await withToken(work);
        if (!signal.aborted) setConnection(source, true);
      } catch (error) {
        if (signal.aborted) return;
        // What the service says is for the view; silence, and being asked too often, are for the line at the top.
        setConnection(source, error instanceof RefusedError && error.status < 500 && error.status !== 429);
      }
    }
    await pause(every(), signal);
  }
}
