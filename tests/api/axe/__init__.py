"""Deque's axe-core (see LICENSE beside it), which finds what keeps people from using a page."""

from __future__ import annotations

from importlib import resources

from tests.api.browser import Browser

RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(
  ({ violations }) => done(violations.flatMap(({ id, impact, nodes }) => nodes.map(
    ({ target, failureSummary }) => `${impact} ${id} at ${target}: ${failureSummary}`))),
  (error) => done([String(error)]));
"""


def violations(browser: Browser) -> list[str]:
    """Look for violations of any weight on the page as it is."""
    if not browser.script("return 'axe' in window"):
        browser.script((resources.files(__package__) / "axe.min.js").read_text("utf-8"))
    found: list[str] = browser.driver.execute_async_script(RUN)
    return found
