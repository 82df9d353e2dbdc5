// Requests to the service with the token, and event streams that reconnect.
// Streams are read with fetch, because EventSource cannot send the token.

import { parse, stringify } from "./exact_json.js";
import { pause, abortWhenSilent, runWhileVisible } from "./waiting.js";

const PREFIX = "/api/v1";
const KEY = "fedsim-token";

// Seconds without a byte after which a request fails. Checks and plans answer late: the service itself gives up a little
// before LONG. An event stream sends a comment every 15 s.
const SILENCE = 30;
export const LONG = 330;
const STREAM_SILENCE = 45;

// The text of browsers ("Failed to fetch") does not help readers.
const makeConnectionError = (cause) => new Error("the service does not answer: check that it is running and that the network works", { cause });

export class RefusedError extends Error {
  constructor(status, problem) {
    super(problem.detail || `the service answered ${status}`);
    this.status = status;
    this.hint = problem.hint ?? "";
    this.errors = problem.errors ?? [];
    this.code = problem.code ?? "";
  }
}

// An error with its way out, as one line.
export const describeError = ({ message, hint }) => `${message}${hint ? `: ${hint}` : ""}`;

// Whether the same request may succeed later: nobody answered, or the service is busy or starting.
export const isTemporary = ({ status }) => !status || status === 429 || status >= 500;

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

// Sends a request; fails after `seconds` without a byte, or never if `seconds` is null.
export async function request(path, { headers = {}, signal, method = "GET", body, seconds = SILENCE } = {}) {
  const token = sessionStorage.getItem(KEY);
  const all = token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
  const waiting = seconds && abortWhenSilent(seconds * 1000, signal, makeConnectionError);
  let response = await fetch(PREFIX + path, { method, headers: all, signal: waiting ? waiting.signal : signal, body, cache: "no-store" }).catch((error) => {
    waiting?.end();
    throw signal?.aborted ? error : makeConnectionError(error);
  });
  if (waiting) response = watchForSilence(response, waiting);
  if (!response.ok) {
    throw new RefusedError(response.status, await response.json().catch(() => ({})));
  }
  return response;
}

// Returns the same response; every byte of it restarts the time limit.
function watchForSilence(response, { heard, end }) {
  // Some browsers give a response without content a body, which `new Response` refuses.
  if (response.status === 204 || !response.body) {
    end();
    return response;
  }
  heard();
  const pass = (chunk, to) => {
    heard();
    to.enqueue(chunk);
  };
  return new Response(response.body.pipeThrough(new TransformStream({ transform: pass, flush: end })), response);
}

export async function get(path, options) {
  return parse(await (await request(path, options)).text());
}

// Sends `data` as JSON, or a text as YAML.
export async function post(path, data, { headers = {}, signal, seconds } = {}) {
  const isText = typeof data === "string";
  const type = isText ? "application/yaml" : "application/json";
  const all = data === undefined ? headers : { ...headers, "Content-Type": type };
  const response = await request(path, { method: "POST", headers: all, signal, seconds, body: isText ? data : stringify(data) });
  return parse(await response.text());
}

// A key by which the service recognises a repeated request. (Over plain HTTP there is no `crypto.randomUUID`.)
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export const jobPath = (id, rest = "") => `/jobs/${encodeURIComponent(id)}${rest}`;

// Calls `onEvent(type, data, id)` for every event of a job, until the job has ended or `signal` aborts.
// `onConnection(true | false)` says whether the service answers. Over HTTP/1.1 all tabs of a browser share six connections
// to a service: a hidden page closes its stream, and continues after the last event when it is visible again.
export async function follow(jobId, { onEvent, onConnection, signal }) {
  let last = 0;
  let delay = 500;
  const listen = async (turn) => {
    try {
      const headers = { Accept: "text/event-stream", "Last-Event-ID": String(last) };
      const response = await request(jobPath(jobId, "/events"), { headers, signal: turn, seconds: STREAM_SILENCE });
      onConnection(true);
      if (response.status === 204) return true;
      for await (const event of events(response.body)) {
        last = event.id;
        delay = 500;
        onEvent(event.type, event.data, event.id);
        if (event.data.terminal) return true;
      }
    } catch (error) {
      if (turn.aborted) return false;
      // After the store was restored from a backup, the last event may be one that it does not have.
      if (error instanceof RefusedError && error.status === 422 && last > 0) last = 0;
      else if (!isTemporary(error)) throw error;
    }
    onConnection(false);
    await pause(delay, signal);
    delay = Math.min(delay * 1.5, 5000);
    return false;
  };
  while (!signal.aborted) {
    if (await runWhileVisible(signal, listen)) return;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = eventOf(block);
      if (event) yield event;
    }
  }
}

function eventOf(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  if (!("data" in fields)) return null;
  return { id: Number(fields.id), type: fields.event, data: JSON.parse(fields.data) };
}
