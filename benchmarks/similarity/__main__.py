"""The command line of Fig. 7; see the package's docstring."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from benchmarks.places import JOURNALS, PAGES
from benchmarks.similarity.runs import list_pairs, make_missing_runs, read_runs
from benchmarks.similarity.section import render_section
from fedsim.errors import FedsimError
from jobs.grid.pages import write_section

NAME = "kdia-similarity"


def parse_epochs(text: str) -> int:
    """Parse a number of epochs: at least 1, because both ways are compared with a trained expert."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of epochs; take at least 1")
    return number


def main(arguments: list[str] | None = None) -> int:
    """Make or render the runs; return 0, 1 if a run failed, 2 if no run can be made or rendered."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    file = options.results / f"{NAME}.jsonl"
    try:
        wanted = list_pairs(options.preset, options.set, options.expert)
        if options.render:
            write_section(options.page, NAME, render_section(wanted, read_runs(file)))
            return 0
        return 1 if make_missing_runs(wanted, file, processes=options.processes) else 0
    except FedsimError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.similarity", description="KDIA's Fig. 7.")
    parser.add_argument("preset", nargs="?", default="kdia-cifar10-small")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--expert", type=parse_epochs, default=20, help="epochs of the expert (default 20)")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--render", action="store_true", help="write the section into the page of results")
    kdia = PAGES / "kdia.md"
    parser.add_argument("--page", type=Path, default=kdia, help="default: docs/results/kdia.md")
    parser.add_argument("--results", type=Path, default=JOURNALS, help="the folder of finished runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
