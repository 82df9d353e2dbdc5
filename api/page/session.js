// Shared by all views: the token dialog, confirmations, notices, and the state of the connection.

import { element, setText } from "./element.js";
import { hasToken, isTemporary, keepToken, RefusedError } from "./service.js";
import { pause } from "./waiting.js";

const NOTICE_SECONDS = 8;
const TOKEN = /^[\x20-\x7e]+$/; // the characters that a header can carry; the service checks its own token in the same way

const find = (id) => document.getElementById(id);
let openTokenRequest = null;
let sources = new Map();

// A view reports for each source of data whether the service answers; leaving the view clears the sources.
export function setConnection(source, there) {
  sources.set(source, there);
  const lost = [...sources.values()].includes(false);
  const text = lost ? "No connection to the service; trying again …" : "Connected";
  setText(find("connection"), sources.size ? text : "Connecting …");
  find("connection").classList.toggle("lost", lost);
  find("connection").classList.toggle("there", sources.size > 0 && !lost);
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

// Refuses a token that no request can carry.
function takeToken(event) {
  const given = find("token").value.trim();
  if (TOKEN.test(given)) return;
  event.preventDefault();
  const words = "The token contains a character that tokens cannot contain, such as a curly quote or an invisible character. Type the token, or copy it again.";
  setText(find("token-note"), given ? words : "The token is empty.");
  find("token").focus();
}

// Runs `work`. If the service requires a token, asks the reader for it and runs `work` again.
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

// Resolves to true if the reader confirms, or, with `number` (label, value, min), to the number that the reader gives.
export function confirm({ head, text, yes, number = null }) {
  const dialog = find("confirm"), input = find("confirm-number");
  find("confirm-line").hidden = input.disabled = !number;
  find("confirm-yes").classList.toggle("danger", !number);
  if (number) {
    setText(find("confirm-label"), number.label);
    Object.assign(input, { min: number.min, value: number.value });
  }
  setText(find("confirm-head"), head);
  setText(find("confirm-text"), text);
  setText(find("confirm-yes"), yes);
  dialog.returnValue = "no";
  find("confirm-no").onclick = () => dialog.close("no"); // not a submit button: Enter in the number field takes the first one
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" && (number ? Number(input.value) : true)), { once: true });
  });
}

// Shows a result or an error for some seconds.
export function notice(text, bad = false) {
  const line = element("p", { class: bad ? "notice bad" : "notice" }, text);
  find("notices").append(line);
  setTimeout(() => line.remove(), NOTICE_SECONDS * 1000);
}

// Runs `work` every `every()` milliseconds until `signal` aborts; not while the page is hidden or the token dialog is open.
export async function repeat(source, every, signal, work) {
  while (!signal.aborted) {
    if (!document.hidden && !isAsking()) {
      try {
        await withToken(work);
        if (!signal.aborted) setConnection(source, true);
      } catch (error) {
        if (signal.aborted) return;
        // The view shows errors that the service returns. The line at the top shows a service that does not answer or is busy.
        setConnection(source, !isTemporary(error));
      }
    }
    await pause(every(), signal);
  }
}
