// Waits for a time, and for the page to be visible.

const AGAIN = 60000; // ms; checks again whether the page is hidden, in case the browser sent no event

// Calls `change` when the page becomes hidden or visible, and when `signal` aborts; returns a function that stops watching.
function watch(signal, change) {
  const end = () => {
    document.removeEventListener("visibilitychange", change);
    signal.removeEventListener("abort", change);
  };
  document.addEventListener("visibilitychange", change);
  signal.addEventListener("abort", change);
  return end;
}

// Waits some milliseconds, or until the page becomes hidden or visible, or until `signal` aborts.
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      end();
      resolve();
    };
    const timer = setTimeout(finish, milliseconds);
    const end = watch(signal, finish);
  });
}

// Runs `work(turn)` once the page is visible; the signal `turn` aborts when the page is hidden or `signal` aborts.
export async function runWhileVisible(signal, work) {
  while (document.hidden && !signal.aborted) await pause(AGAIN, signal);
  const turn = new AbortController();
  const end = watch(signal, () => (document.hidden || signal.aborted) && turn.abort());
  if (signal.aborted) turn.abort();
  try {
    return await work(turn.signal);
  } finally {
    end();
  }
}

// Returns a signal that aborts with `signal`, or with `reason()` if `heard()` is not called for some milliseconds. Call `end()`
// when the work is done.
export function abortWhenSilent(milliseconds, signal, reason) {
  const silent = new AbortController();
  const abort = () => stop(signal.reason);
  let timer = null;
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  };
  function stop(why) {
    end();
    silent.abort(why);
  }
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop(reason()), milliseconds);
  };
  signal?.addEventListener("abort", abort);
  heard();
  if (signal?.aborted) abort();
  return { signal: silent.signal, heard, end };
}
