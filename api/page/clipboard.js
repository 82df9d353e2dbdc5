// Copies text to the clipboard.

import { element } from "./element.js";
import { notice } from "./session.js";

// Copies a text and shows the notice `done`. If the browser blocks copying, selects the text in the element `shown`; without
// that element, shows the text as a notice.
export async function copy(text, done, shown = null) {
  try {
    // Over plain HTTP from another machine there is no `navigator.clipboard`.
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copyByHand(text)) {
      if (shown) selectText(shown);
      notice(shown ? "The browser blocked copying. The text is selected: copy it with Ctrl-C" : text, Boolean(shown));
      return;
    }
  }
  notice(done);
}

// Copies from a temporary field, as a reader would.
function copyByHand(text) {
  const held = document.activeElement;
  const field = element("textarea", { class: "for-readers", readonly: true, "aria-hidden": "true", value: text });
  document.body.append(field);
  try {
    field.select();
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
    held?.focus({ preventScroll: true });
  }
}

function selectText(shown) {
  if (shown.select) shown.select();
  else getSelection().selectAllChildren(shown);
}
