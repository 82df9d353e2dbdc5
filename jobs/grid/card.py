"""Cards: the claims of a paper, the runs that were made, and the verdicts, as sections of Markdown pages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from jobs.grid.finished import list_missing
from jobs.grid.journal import Entry, Journal
from jobs.grid.markdown import render
from jobs.grid.pages import PAPERS, find_paper, write_section
from jobs.grid.spread import make_lines
from jobs.grid.table import Table
from jobs.grid.verdicts import Outcome, Verdict, judge_claims

Tables = Mapping[str, Sequence[Table]]
"""{page: its tables}."""


def write_report(tables: Iterable[Table], journals: Path, pages: Path) -> list[Path]:
    """Write finished tables and the card of each paper into its page, and all claims into README.md.

    Text outside the markers of these sections stays as it is. A page is made if there is none. Tables without
    any finished run are left out.

    Args:
        tables: all tables of each page that is written.
        journals: the folder of the finished runs.
        pages: the folder of the pages.

    Returns:
        The files.
    """
    started = [(table, entries) for table in tables if (entries := Journal(journals, table.name).read())]
    written, judged = list[Path](), dict[str, list[Verdict]]()
    for page, group in groupby(sorted(started, key=lambda each: each[0].page), lambda each: each[0].page):
        runs = list(group)
        file = pages / f"{page}.md"
        judged[page] = [verdict for each in runs for verdict in judge_claims(*each)]
        if not file.is_file():
            file.write_text(f"# Results: {find_paper(page).short}\n\n{find_paper(page).title}\n", "utf-8")
        write_section(file, f"card {page}", render_card(runs, judged[page]), head=True)
        for table, entries in runs:
            if not list_missing(table, Journal(journals, table.name)):
                write_section(file, table.name, render(table, entries))
        written.append(file)
    if len(judged) > 1:
        write_section(pages / "README.md", "claims", render_claims(judged))
        written.append(pages / "README.md")
    return written


def render_card(runs: Sequence[tuple[Table, Mapping[str, Entry]]], verdicts: Sequence[Verdict]) -> str:
    """The card of one paper: its claims with verdicts, and the runs behind them."""
    parts = ["## Card"]
    if verdicts:
        heads = ["claim", "in the paper", "table: cell", "verdict", "here", "difference", "p (Holm)"]
        parts.append(make_lines(heads, _claim_rows(verdicts)))
    heads = ["table", "runs", "seeds", "hours", "devices", "code", "digests", "command"]
    return "\n\n".join([*parts, "Runs:", make_lines(heads, [_run_row(*each) for each in runs])])


def _claim_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    rows = list[list[str]]()
    for verdict in verdicts:
        claim = verdict.claim
        where = f"`{verdict.table}`" + (f": {verdict.describe_cell()}" if verdict.cell else "")
        rows.append([
            claim.sentence,
            "; ".join(part for part in (claim.place, claim.figure) if part),
            where,
            f"**{verdict.outcome}**{verdict.describe().removeprefix(verdict.outcome)}",
            verdict.format_figures(),
            verdict.format_difference(),
            verdict.format_p(),
        ])  # fmt: skip
    return rows


def _run_row(table: Table, entries: Mapping[str, Entry]) -> list[str]:
    """What was run of a table: with which seeds, for how long, on which devices, by which code."""
    runs = [entries[member.spec_hash] for member in table.runs() if member.spec_hash in entries]
    digests = hashlib.sha256("".join(sorted(run.digest for run in runs)).encode()).hexdigest()[:16]
    return [
        f"`{table.name}`",
        f"{len(runs)} of {len(table.runs())}",
        ", ".join(map(str, sorted({run.seed for run in runs}))),
        f"{sum(run.seconds for run in runs) / 3600:.1f}",
        ", ".join(sorted({run.device for run in runs})),
        ", ".join(sorted({f"`{run.code}`" for run in runs if run.code})),
        f"`{digests}`",
        f"`fedsim reproduce {table.name}`",
    ]


def render_claims(judged: Mapping[str, Sequence[Verdict]]) -> str:
    """All claims in short: one line each, with the verdicts of all tables and cells counted."""
    rows = list[list[str]]()
    for page in sorted(judged, key=lambda page: list(PAPERS).index(page) if page in PAPERS else len(PAPERS)):
        by_claim: dict[str, list[Verdict]] = {}
        for verdict in judged[page]:
            by_claim.setdefault(verdict.claim.id, []).append(verdict)
        for verdicts in by_claim.values():
            link = f"[{find_paper(page).short}]({page}.md#card)"
            claim = verdicts[0].claim
            rows.append([link, claim.sentence, claim.place, _count(verdicts), _range(verdicts)])
    return make_lines(["paper", "claim", "place", "verdict", "differences"], rows)


def _count(verdicts: Sequence[Verdict]) -> str:
    """Count the verdicts, e.g. `held in 3 of 4; no difference to tell in 1 of 4`, and give the reasons."""
    found = [verdict for verdict in verdicts if verdict.outcome is not Outcome.NOT_RUN]
    if not found:
        return f"**{Outcome.NOT_RUN}**"
    reasons = "; ".join(sorted({verdict.reason for verdict in found if verdict.reason}))
    by_outcome = {outcome: [v for v in found if v.outcome is outcome] for outcome in Outcome}
    parts = [
        f"**{outcome}**" + (f" in {len(group)} of {len(found)}" if len(found) > 1 else "")
        for outcome, group in by_outcome.items()
        if group
    ]
    return "; ".join(parts) + (f": {reasons}" if reasons else "")


def _range(verdicts: Sequence[Verdict]) -> str:
    """The smallest and the largest difference, each with its interval."""
    told = [verdict for verdict in verdicts if verdict.difference is not None]
    told.sort(key=lambda verdict: verdict.difference.mean * verdict.scale if verdict.difference else 0.0)
    if not told:
        return ""
    if len(told) == 1:
        return told[0].format_difference()
    return f"{told[0].format_difference()} to {told[-1].format_difference()}"
