"""The command line of the tables; see the package's docstring."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

from benchmarks.tables import journal as journals
from benchmarks.tables import markdown, page
from benchmarks.tables.grid import Table, TableError, load_table, tables
from benchmarks.tables.journal import Journal
from benchmarks.tables.work import missing, run_table
from jobs.settings import Settings


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if it worked, 1 if a run failed or is left out, 2 for a wrong table."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        return {"list": _list, "run": _run, "render": _render}[options.command](options)
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description="Result tables.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show all tables, and the finished runs of each")
    running = commands.add_parser("run", help="make the missing runs of tables")
    running.add_argument("names", nargs="+", metavar="name", help="tables, run in this order")
    running.add_argument("--processes", type=int, default=2, help="runs at a time (default 2)")
    running.add_argument("--nice", type=int, default=19, help="niceness of the processes (default 19)")
    running.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device that trains (default cpu); all processes share the first GPU",
    )
    rendering = commands.add_parser("render", help="write tables into the pages of results")
    rendering.add_argument("names", nargs="*", metavar="name", help="default: all finished tables")
    rendering.add_argument(
        "--page", type=Path, help="default: the page of the table's paper in docs/results/"
    )
    for command in (running, rendering):
        command.add_argument(
            "--preset", help="use this preset, such as the paper's scale, instead of the table's"
        )
    for command in (listing, running, rendering):
        command.add_argument(
            "--results",
            type=Path,
            default=journals.FOLDER,
            help="folder of the journals (default: benchmarks/results)",
        )
    return parser


def _list(options: argparse.Namespace) -> int:
    for name in tables():
        table = load_table(name)
        waiting, faults = missing(table, Journal(options.results, name))
        total = sum(1 for _ in table.runs())
        line = f"{name:34} {total - len(waiting) - len(faults):4} of {total:4} runs  {table.title}"
        sys.stdout.write(f"{line}{f'  ({len(faults)} cannot be run)' if faults else ''}\n")
    return 0


def _table(name: str, preset: str | None) -> Table:
    table = load_table(name)
    return table.on(preset) if preset else table


def _run(options: argparse.Namespace) -> int:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise TableError("--device cuda: torch finds no GPU that it can use here; leave the option out")
    settings, faults = Settings.from_env(), list[str]()
    how = {"processes": options.processes, "niceness": options.nice, "device": options.device}
    for table in [_table(name, options.preset) for name in options.names]:
        journal = Journal(options.results, table.name)
        faults += run_table(table, journal, settings, **how)
    return 1 if faults else 0


def _render(options: argparse.Namespace) -> int:
    for name in options.names or _finished(options.results):
        table = _table(name, options.preset)
        section = markdown.render(table, Journal(options.results, name).read())
        page.write_section(options.page or page.page_file(table.page), name, section)
    return 0


def _finished(results: Path) -> list[str]:
    """The tables whose runs are all in their journals."""
    return [name for name in tables() if missing(load_table(name), Journal(results, name)) == ([], [])]


if __name__ == "__main__":
    sys.exit(main())
