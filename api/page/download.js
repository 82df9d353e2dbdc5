// Files that the browser stores.

import { element } from "./element.js";

export function save(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
