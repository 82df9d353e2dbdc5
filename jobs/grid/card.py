"""Cards: the claims of a paper, the runs that were made, and the verdicts, as sections of Markdown pages."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from jobs.grid.finished import list_missing
from jobs.grid.journal import Entry, Journal
from jobs.grid.markdown import render
from jobs.grid.pages import PAPERS, find_paper, write_section
from jobs.grid.search import choose_values, is_searched
from jobs.grid.spread import make_lines
from jobs.grid.table import Table
from jobs.grid.verdicts import Outcome, Verdict, judge_claims

Runs: TypeAlias = Mapping[str, Entry]
"""{key: finished run}."""

SIGNIFICANCE = 0.05
"""The level at which p-values are counted."""


def write_report(tables: Iterable[Table], journals: Path, pages: Path) -> list[Path]:
    """Write the tables and the card of each paper into its page, and all claims into README.md.

    Text outside the markers of these sections stays as it is. A page is made if there is none. Tables without
    any finished run are left out, and so are tables whose search has missing runs; a table with missing runs
    says how many it has.

    Args:
        tables: all tables of each page that is written.
        journals: the folder of the finished runs.
        pages: the folder of the pages.

    Returns:
        The files.
    """
    by_page: dict[str, list[tuple[Table, Runs]]] = {}
    idle = list[Table]()
    for table in tables:
        entries = Journal(journals, table.name).read()
        if not entries:
            idle.append(table)
        elif is_searched(table, journals):
            by_page.setdefault(table.page, []).append((choose_values(table, journals), entries))
    written, judged = list[Path](), dict[str, list[Verdict]]()
    for page, started in by_page.items():
        file = pages / f"{page}.md"
        runs = _sort(started, file)
        judged[page] = [verdict for table, found in runs for verdict in judge_claims(table, found)]
        if not file.is_file():
            file.write_text(f"# Results: {find_paper(page).short}\n\n{find_paper(page).title}\n", "utf-8")
        write_section(file, f"card {page}", render_card(runs, judged[page]), head=True)
        for table, found in runs:
            if len(list_missing(table, Journal(journals, table.name))) < len(table.runs()):
                write_section(file, table.name, render(table, found))
        written.append(file)
    if len(judged) > 1:
        # The short table has every claim of a judged page, also those of tables without runs.
        for table in idle:
            judged.get(table.page, []).extend(judge_claims(table, {}))
        write_section(pages / "README.md", "claims", render_claims(judged))
        written.append(pages / "README.md")
    return written


def _sort(runs: list[tuple[Table, Runs]], file: Path) -> list[tuple[Table, Runs]]:
    """Sort the tables by their sections on the page; tables without a section come last."""
    text = file.read_text("utf-8") if file.is_file() else ""
    places = {table.name: text.find(f"<!-- table {table.name} -->") for table, _ in runs}
    return sorted(runs, key=lambda each: (places[each[0].name] < 0, places[each[0].name]))


def render_card(runs: Sequence[tuple[Table, Runs]], verdicts: Sequence[Verdict]) -> str:
    """Render the card of a paper: its claims with verdicts, and the runs behind them."""
    parts = ["## Card"]
    for claims in _group(verdicts).values():
        parts += _render_claim(claims)
    heads = ["table", "runs", "seeds", "hours", "devices", "code", "digests", "command"]
    parts += ["### Runs behind the card", make_lines(heads, [_run_row(*each) for each in runs])]
    parts.append(
        "Hours: of the rounds, one thread for each run. Digests: SHA-256 over the last digest of each run."
    )
    return "\n\n".join(parts)


def _group(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Group the verdicts of all tables and cells by claim."""
    by_claim: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_claim.setdefault(verdict.claim.id, []).append(verdict)
    return by_claim


def _render_claim(verdicts: Sequence[Verdict]) -> list[str]:
    """Render a heading, the figures of the paper, the control, and a line for each cell."""
    claim = verdicts[0].claim
    parts = [f"### {claim.sentence.rstrip('.')}"]
    figures = dict.fromkeys(verdict.claim.figure for verdict in verdicts)
    # Tables with fewer cells have the beginning of the figures of others.
    longest = [each for each in figures if not any(each != o and o.startswith(each) for o in figures)]
    if said := [*filter(None, [claim.place, *longest])]:
        parts.append(f"In the paper: {'; '.join(said)}.")
    parts += dict.fromkeys(
        _describe_margin(verdict) for verdict in verdicts if verdict.claim.margin is not None
    )
    reasons = dict.fromkeys(verdict.reason for verdict in verdicts if verdict.evidence)
    parts += [f"The control contradicts it: {reason}." for reason in reasons]
    heads = ["table", "cells", "verdict", "figures", "difference", "p (Holm)"]
    rows = [
        [
            *(f"`{verdict.table}`", verdict.describe_cell(), _mark(verdict), verdict.format_figures()),
            *(verdict.format_difference(), verdict.format_p()),
        ]
        for verdict in verdicts
    ]
    return [*parts, make_lines(heads, rows)]


def _describe_margin(verdict: Verdict) -> str:
    """Write the margin of a claim: how far from 0, on which side, and in which table."""
    side = "on both sides of" if verdict.claim.direction == "level" else "below"
    size = f"{(verdict.claim.margin or 0.0) * verdict.scale:g} {verdict.unit}".rstrip()
    return f"The margin is {size} {side} 0 (`{verdict.table}`)."


def _mark(verdict: Verdict) -> str:
    return f"**{verdict.outcome}**{verdict.describe_briefly().removeprefix(verdict.outcome)}"


def _run_row(table: Table, entries: Runs) -> list[str]:
    """Render the finished runs of a table: seeds, seconds, devices, versions of the code, and digests."""
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
        f"`{table.command}`",
    ]


def render_claims(judged: Mapping[str, Sequence[Verdict]]) -> str:
    """Render one line for each claim, with the counts of its verdicts."""
    rows = list[list[str]]()
    for page in sorted(judged, key=lambda page: list(PAPERS).index(page) if page in PAPERS else len(PAPERS)):
        for verdicts in _group(judged[page]).values():
            link = f"[{find_paper(page).short}]({page}.md#card)"
            claim = verdicts[0].claim
            place = claim.place or "this project"
            cells = [_count(verdicts), _name_baselines(verdicts), _range(verdicts)]
            rows.append([link, claim.sentence, place, *cells])
    return make_lines(["paper", "claim", "place", "verdict", "compared with", "differences to it"], rows)


def _name_baselines(verdicts: Sequence[Verdict]) -> str:
    """Write what the cells of a claim are compared with, e.g. `FedAvg` or `Dir(10); Dir(1)`."""
    told = [each for each in verdicts if each.outcome is not Outcome.NOT_RUN] or verdicts
    named = (", ".join(each.claim.baseline.values()) for each in told)
    return "; ".join(dict.fromkeys(filter(None, named)))


def _count(verdicts: Sequence[Verdict]) -> str:
    """Count the verdicts and give their reasons, e.g. `held in 3 of 4 (2 by Holm); reversed in 1 of 4`."""
    found = [verdict for verdict in verdicts if verdict.outcome is not Outcome.NOT_RUN]
    if not found:
        return f"**{Outcome.NOT_RUN}**"
    parts = list[str]()
    for outcome in Outcome:
        group = [verdict for verdict in found if verdict.outcome is outcome]
        if not group:
            continue
        text = f"**{outcome}**" + (f" in {len(group)} of {len(found)}" if len(found) > 1 else "")
        known = [verdict.p_value for verdict in group if verdict.p_value is not None]
        if known and outcome in (Outcome.HELD, Outcome.REVERSED):
            text += f" ({sum(p < SIGNIFICANCE for p in known)} by Holm)"
        reasons = Counter(verdict.reason for verdict in group if verdict.reason)
        told = [
            reason if count == len(group) else f"{reason} ({count})"
            for reason, count in sorted(reasons.items())
        ]
        parts.append(text + (f": {'; '.join(told)}" if told else ""))
    return "; ".join(parts)


def _range(verdicts: Sequence[Verdict]) -> str:
    """Write the smallest and the largest difference, each with its interval."""
    told = [verdict for verdict in verdicts if verdict.difference is not None]
    told.sort(key=lambda verdict: verdict.difference.mean * verdict.scale if verdict.difference else 0.0)
    if not told:
        return ""
    if len(told) == 1:
        return told[0].format_difference()
    return f"{told[0].format_difference()} to {told[-1].format_difference()}"
