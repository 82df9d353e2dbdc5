// Putting a text where the reader can paste it.

import { element } from "./element.js";
import { notice } from "./session.js";

// Copies a text and says `done`. What cannot be copied is marked in `shown`, the element that shows it, or else told.
export async function copy(text, done, shown = null) {
  try {
    // Over plain HTTP from another machine there is no `navigator.clipboard`.
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copyByHand(text)) {
      if (shown) selectText(shown);
      notice(shown ? "The browser did not let the page copy: the text is marked, for you to copy it" : text, Boolean(shown));
      return;
    }
  }
  notice(done);
}

// As a reader would: out of a field, which is there for as long as it takes.
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
