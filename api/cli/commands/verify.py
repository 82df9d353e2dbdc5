"""`fedsim verify`: compares the digests of two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.commands.options import Format, FormatOption, UrlOption
from fedsim.errors import SettingsError

if TYPE_CHECKING:
    from api.reports.verification import RoundDigests, Verdict

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job id, a folder written by `run --out`, or a file written by `run --format json`.",
    ),
]

DIGEST_DIGITS = 16
"""Digits of a digest in the table; two different digests do not agree in so many digits by chance."""


DIGEST_NAMES = {"state": "server state", "memories": "client states"}
"""Names of the digests in the table, by their JSON keys."""


def verify(
    first: RunArgument, second: RunArgument, format: FormatOption = Format.TEXT, url: UrlOption = None
) -> None:
    """Compare the digests of two runs round by round; exit code 1 if they differ."""
    from api.cli.display import print_json
    from api.reports.verification import compare_digests

    runs = _read_digests(first, url), _read_digests(second, url)
    if not any(runs):
        raise SettingsError(
            f"nothing to compare: {first!r} and {second!r} have no rounds",
            "`fedsim list` shows the number of rounds of each job",
        )
    verdict = compare_digests(*runs)
    if format is Format.JSON:
        print_json(_document(verdict))
    else:
        _print(verdict, first, second)
    raise typer.Exit(int(verdict.difference is not None))


def _read_digests(run: str, url: str | None) -> dict[int, RoundDigests]:
    from api.cli.commands.connection import connect
    from api.cli.display import print_message
    from api.reports.verification import list_digests, read_digests
    from api.sdk.run_sources import explain_missing_paths
    from jobs.store.states import FINAL

    path = Path(run).expanduser()
    if path.exists():
        return read_digests(path)
    with explain_missing_paths([run]), connect(url) as client:
        handle = client.job(run)
        found = list_digests(record.model_dump(mode="json") for record in handle.rounds())
        if handle.state not in FINAL:
            print_message(f"job {handle.id} is {handle.state}: comparing its first {len(found)} rounds")
        return found


def _document(verdict: Verdict) -> dict[str, Any]:
    difference = verdict.difference
    if difference is None:
        alone = verdict.only_with_client_states
        more = {"only_with_client_states": alone} if alone else {}
        return {"equal": True, "rounds": verdict.rounds, "difference": None, **more}
    parts = {name: [one, other] for name, one, other in difference.list_differing_digests()}
    return {
        "equal": False,
        "rounds": verdict.rounds,
        "difference": {"round": difference.round, **parts},
    }


def _print(verdict: Verdict, first: str, second: str) -> None:
    from rich.markup import escape

    from api.cli.display import make_data_console, make_table, print_message, print_table

    rounds = "1 round agrees" if verdict.rounds == 1 else f"{verdict.rounds} rounds agree"
    if verdict.difference is None:
        make_data_console().print(f"equal: {rounds}, bit for bit")
        if alone := verdict.only_with_client_states:
            named = first if alone == "first" else second
            print_message(f"only {named} has client states in some rounds: they are not compared there")
        return
    if missing := verdict.difference.missing:
        shorter, longer = (first, second) if missing == "first" else (second, first)
        number = verdict.difference.round
        print_message(f"{rounds}; {shorter} ends there, and {longer} also has round {number}")
        return
    rows = [
        (str(verdict.difference.round), DIGEST_NAMES[name], _short(one), _short(other))
        for name, one, other in verdict.difference.list_differing_digests()
    ]
    print_message(f"different: {rounds}, round {verdict.difference.round} differs")
    if verdict.difference.stack_sizes is not None:
        one, other = verdict.difference.stack_sizes
        print_message(
            f"stack sizes differ ({one} and {other}), and this alone changes the last bits: "
            "compare runs with the same resources.stack"
        )
    print_table(make_table(("round", "digest of", escape(first), escape(second)), rows, numbers=("round",)))


def _short(digest: str | None) -> str:
    return digest[:DIGEST_DIGITS] if digest else "none"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(verify)
