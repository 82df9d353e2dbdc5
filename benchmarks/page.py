"""How soon the page shows something, measured in a headless Chromium: from the start of loading on.

    python benchmarks/page.py    # 1,000 jobs, one of them of 2,000 rounds; prints one JSON line

`jobs` is until the table stands with its first row, `curves` until its small curves are drawn too, `job`
until the job of many rounds is there with its latest metrics, `chart` until its whole curve of accuracy is
drawn. Each view is loaded anew every time, with the browser's cache as a second visit finds it (the chart
library is kept), and the median of the visits is told.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from time import sleep

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import here
from benchmarks.service import fill, served
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from tests.api.browser import Browser

SIGNS = {
    "jobs": "document.querySelector('#job-table tbody tr')",
    "curves": "document.querySelector('.spark-line[d]')",
    "job": "document.querySelector('#facts-cost')",
    "chart": "document.querySelector('#chart-words')?.textContent.includes('at round ROUNDS')",
}
WATCH = """
    window.seen = {};
    const look = () => {
      for (const [name, sign] of Object.entries(SIGNS)) {
        if (!(name in window.seen) && sign()) window.seen[name] = Math.round(performance.now());
      }
      requestAnimationFrame(look);
    };
    look();
"""
PATIENCE = 30.0


def watch(browser: Browser, rounds: int) -> None:
    """Have every page note when each sign appears, in milliseconds since its loading began."""
    signs = ", ".join(f"{name}: () => {sign}" for name, sign in SIGNS.items()).replace("ROUNDS", str(rounds))
    source = WATCH.replace("SIGNS", f"{{ {signs} }}")
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})


def visit(browser: Browser, url: str, last: str) -> dict[str, int]:
    """Load a view, and wait until the last of its signs is there."""
    browser.open(url)
    for _ in range(int(PATIENCE / 0.05)):
        seen: dict[str, int] = browser.script("return window.seen")
        if last in seen:
            return seen
        sleep(0.05)
    raise TimeoutError(f"{url} did not show {last!r} within {PATIENCE:g} s")


def main() -> None:
    """Fill, serve, look, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2000, help="of the one long job")
    parser.add_argument("--short", type=int, default=10, help="rounds of each other job")
    parser.add_argument("--visits", type=int, default=7, help="of each view; the first is not counted")
    asked = parser.parse_args()
    asked.long = 1
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(Path(folder) / "home")
        settings.make_home()
        with JobStore.open(settings.database_url) as store:
            fill(store, asked)
        with served(settings.home, settings.database_url) as (client, _):
            url = str(client.base_url).partition("/api")[0]
            browser = Browser(Path(folder) / "profile")
            try:
                watch(browser, asked.rounds)
                views = {f"{url}/#/jobs": "curves", f"{url}/#/jobs/000000000000": "chart"}
                visits = [visit(browser, *view) for view in views.items() for _ in range(asked.visits)]
            finally:
                browser.close()
    counted = [seen for number, seen in enumerate(visits) if number % asked.visits]
    found = {name: statistics.median(seen[name] for seen in counted if name in seen) for name in SIGNS}
    size = {name: getattr(asked, name) for name in ("jobs", "rounds", "short", "visits")}
    print(json.dumps({**size, "milliseconds": found, **here()}))


if __name__ == "__main__":
    main()
