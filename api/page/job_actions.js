// What can be done to a job, and the buttons for it.

import { button } from "./element.js";
import { jobPath, post, request } from "./service.js";
import { confirm, notice, withToken } from "./session.js";
import { FINAL, RESUMABLE } from "./formatting.js";

async function attempt(what, work) {
  try {
    await withToken(work);
    notice(what);
    return true;
  } catch (error) {
    notice(`${error.message}${error.hint ? `: ${error.hint}` : ""}`, true);
    return false;
  }
}

const ACTIONS = {
  cancel: {
    label: "Cancel",
    fits: (job) => !FINAL.has(job.state) && job.state !== "CANCELLING",
    run: (job) => attempt(`${job.name} will be cancelled`, () => post(jobPath(job.id, "/cancel"))),
  },
  resume: {
    label: "Resume",
    fits: (job) => RESUMABLE.has(job.state),
    run: (job) => attempt(`${job.name} waits in the queue again`, () => post(jobPath(job.id, "/resume"))),
  },
  clone: {
    label: "Clone",
    fits: () => true,
    run: async (job) => { location.hash = `#/new?from=${job.id}`; },
  },
  delete: {
    label: "Delete",
    fits: (job) => FINAL.has(job.state),
    run: remove,
  },
};

async function remove(job) {
  const text = `Its ${job.rounds_done} rounds, its log and its files are gone for good.`;
  if (!await confirm({ head: `Delete ${job.name}?`, text, yes: "Delete it" })) return false;
  return attempt(`${job.name} is deleted`, () => request(jobPath(job.id), { method: "DELETE" }));
}

// Buttons for what fits the job now; `update(job)` shows and hides them. `done(name, job)` is called after each.
export function actionButtons(done) {
  let current = null;
  const buttons = Object.entries(ACTIONS).map(([name, action]) => {
    const act = async () => { if (await action.run(current)) done(name, current); };
    return button(action.label, act, { class: "quiet", data: { action: name } });
  });
  const update = (job) => {
    current = job;
    const held = buttons.find((each) => each === document.activeElement);
    buttons.forEach((each) => {
      const action = ACTIONS[each.dataset.action];
      each.hidden = !action.fits(job);
      each.setAttribute("aria-label", `${action.label} ${job.name}`);
    });
    // What was in hand may fit no more: the hand stays with this job.
    if (held?.hidden) buttons.find((each) => !each.hidden).focus();
  };
  return { buttons, update };
}
