"""`fedsim verify`: two runs, compared by the digests of their rounds."""

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
        metavar="JOB", help="A job's id, a folder of `run --out`, or a file of `run --format json`."
    ),
]

DIGEST_DIGITS = 16
"""How many digits of a digest a table shows: more than ever agree by chance."""


def verify(
    first: RunArgument, second: RunArgument, format: FormatOption = Format.TEXT, url: UrlOption = None
) -> None:
    """Compare two runs round by round by their digests; exit 1 if they differ."""
    from api.cli.display import print_json
    from api.reports.verification import compare_digests

    runs = _read_digests(first, url), _read_digests(second, url)
    if not any(runs):
        raise SettingsError(
            f"there is nothing to compare: neither {first!r} nor {second!r} has a round",
            "`fedsim list` shows how many rounds a job has done",
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
    from jobs.store.states import FINAL

    path = Path(run).expanduser()
    if path.exists():
        return read_digests(path)
    with connect(url) as client:
        handle = client.job(run)
        found = list_digests(record.model_dump(mode="json") for record in handle.rounds())
        if handle.state not in FINAL:
            print_message(
                f"job {handle.id} is {handle.state}: it is compared with its {len(found)} rounds so far"
            )
        return found


def _document(verdict: Verdict) -> dict[str, Any]:
    difference = verdict.difference
    if difference is None:
        return {"equal": True, "rounds": verdict.rounds, "difference": None}
    parts = {name: [one, other] for name, one, other in difference.list_differing_digests()}
    return {
        "equal": False,
        "rounds": verdict.rounds,
        "difference": {"round": difference.round, **parts},
    }


def _print(verdict: Verdict, first: str, second: str) -> None:
    from rich.markup import escape

    from api.cli.display import make_data_console, make_table, print_message

    rounds = "1 round agrees" if verdict.rounds == 1 else f"{verdict.rounds} rounds agree"
    if verdict.difference is None:
        make_data_console().print(f"equal: {rounds}, bit for bit")
        return
    rows = [
        (str(verdict.difference.round), name, _short(one), _short(other))
        for name, one, other in verdict.difference.list_differing_digests()
    ]
    print_message(f"different: {rounds}, then round {verdict.difference.round} does not")
    if verdict.difference.stack_sizes is not None:
        one, other = verdict.difference.stack_sizes
        print_message(
            f"{one} and {other} clients trained at once, which alone changes the last bits: "
            "compare runs with the same resources.stack"
        )
    make_data_console().print(
        make_table(("round", "what", escape(first), escape(second)), rows, numbers=("round",))
    )


def _short(digest: str | None) -> str:
    return digest[:DIGEST_DIGITS] if digest else "none"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Jobs")(verify)
