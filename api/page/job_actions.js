// The actions of a job, and their buttons.

import { button } from "./element.js";
import { describeError, jobPath, LONG, post, request } from "./service.js";
import { confirm, notice, withToken } from "./session.js";
import { FINAL, RESUMABLE } from "./formatting.js";

async function attempt(what, work) {
  try {
    await withToken(work);
    notice(what);
    return true;
  } catch (error) {
    notice(describeError(error), true);
    return false;
  }
}

const ACTIONS = {
  cancel: {
    label: "Cancel",
    fits: (job) => !FINAL.has(job.state) && job.state !== "CANCELLING",
    run: (job) => attempt(`${job.name} is being cancelled`, () => post(jobPath(job.id, "/cancel"))),
  },
  resume: {
    label: "Resume",
    fits: (job) => RESUMABLE.has(job.state),
    run: (job) => attempt(`${job.name} is queued again`, () => post(jobPath(job.id, "/resume"))),
  },
  more: {
    label: "More rounds",
    fits: (job) => job.state === "SUCCEEDED",
    run: giveRounds,
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

async function giveRounds(job) {
  const text = `It has ${job.rounds_done} rounds, and goes on from its last checkpoint.`;
  const number = { label: "Number of rounds, with those before", value: 2 * job.rounds_done, min: job.rounds_done + 1 };
  const rounds = await confirm({ head: `More rounds for ${job.name}`, text, yes: "Queue", number });
  if (!rounds) return false;
  return attempt(`${job.name} is queued again`, () => post(jobPath(job.id, "/resume"), { rounds }, { seconds: LONG }));
}

async function remove(job) {
  const text = `Its ${job.rounds_done} rounds, its log and its files will be deleted. This cannot be undone.`;
  if (!await confirm({ head: `Delete ${job.name}?`, text, yes: "Delete" })) return false;
  return attempt(`${job.name} was deleted`, () => request(jobPath(job.id), { method: "DELETE" }));
}

// Buttons for the actions that are possible now; `update(job)` shows and hides them. `done(name, job)` is called after each.
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
    // If the button with the focus disappears, another button of this job takes the focus.
    if (held?.hidden) buttons.find((each) => !each.hidden).focus();
  };
  return { buttons, update };
}
