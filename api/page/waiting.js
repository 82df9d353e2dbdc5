// Waiting for a time, and for the page to be looked at.

const AGAIN = 60000; // looked anew whether the page is hidden, should its browser not have said so

// Calls `change` when the page is hidden or seen again, and when `signal` aborts; gives what ends that.
function watch(signal, change) {
  const end = () => {
    document.removeEventListener("visibilitychange", change);
    signal.removeEventListener("abort", change);
  };
  document.addEventListener("visibilitychange", change);
  signal.addEventListener("abort", change);
  return end;
}

// Waits so many milliseconds, or until the page is hidden or looked at again, or until `signal` aborts.
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

// Does `work(turn)` once the page is seen; the signal `turn` aborts when it is hidden, and when `signal` does.
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

// A signal that aborts when `signal` does, and by itself, with what `reason()` gives, when `heard()` was not called for so
// many milliseconds; `end()` once nothing is waited for.
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
