"""What MkDocs cannot do by itself: pages of the repository's root, and pages generated from the code.

The pages of the root become pages of the site. Links to other files outside docs/, such as the code of an
algorithm, keep their text and lose their target: the site does not contain these files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "examples/README.md": "project/examples.md",
}
"""Pages outside docs/, and their places in the site."""

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]*)(#[^)\s]*)?\)")
SESSION = re.compile(r"^( *)(>>> .*(?:\n(?! *$).*)*)", re.MULTILINE)
CODE = re.compile(r"(^ *```.*?^ *```$|`(?:[^`\n]|\n(?! *\n))+`)", re.DOTALL | re.MULTILINE)


class FencedSessions(griffe.Extension):
    """Show the interactive sessions of docstrings as code: Markdown takes `>>>` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put fences around each session."""
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(r"\1```pycon\n\1\2\n\1```", obj.docstring.value)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and those generated from the code."""
    texts = {place: (ROOT / name).read_text("utf-8") for name, place in PAGES.items()}
    texts |= {"reference/commands.md": render_commands(), "reference/routes.md": render_routes()}
    for place, text in texts.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point the links of a page at places in the site."""
    here = page.file.src_uri
    source = next((name for name, place in PAGES.items() if place == here), f"docs/{here}")
    parts = CODE.split(markdown)  # every second part is code
    parts[::2] = [LINK.sub(lambda link: _move_link(link, source, here), part) for part in parts[::2]]
    return "".join(parts)


def _move_link(link: re.Match[str], source: str, here: str) -> str:
    image, text, target, anchor = link.groups(default="")
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if (ROOT / place / "README.md").is_file():
        place = posixpath.join(place, "README.md")
    if place in PAGES:
        place = PAGES[place]
    elif place.startswith("docs/") and (ROOT / place).is_file() and not place.endswith(".py"):
        place = place.removeprefix("docs/")
    else:
        return text
    return f"{image}[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"


def render_commands() -> str:
    """All commands with their arguments and options, from the command-line app itself."""
    import click
    import typer
    from typer.cli import get_docs_for_click

    from api.cli.main import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=click.Context(command), name="fedsim", title="All commands")
    return re.sub(r" *\n\n+", "\n\n", text)


def render_routes() -> str:
    """All routes with their parameters and answers, from the OpenAPI description of the service."""
    import tempfile

    from api.server.app import create_app
    from jobs.settings import Settings

    with tempfile.TemporaryDirectory() as home:
        description = create_app(Settings(home=Path(home))).openapi()
    lines = ["# All routes", "", "The same description for programs is at `/api/v1/openapi.json`.", ""]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            meaning = route.get("description") or route.get("summary", "")
            lines += [f"## {method.upper()} {path}", "", meaning, ""]
            lines += _render_parameters(route.get("parameters", []))
            lines += [f"**Answers**: {', '.join(sorted(route['responses']))}", ""]
    return "\n".join(lines)


def _render_parameters(parameters: list[dict[str, Any]]) -> list[str]:
    if not parameters:
        return []
    rows = [
        f"| `{each['name']}` | {each['in']} | {'yes' if each.get('required') else 'no'} "
        f"| {' '.join(each.get('description', '').split()).replace('|', '&#124;')} |"
        for each in parameters
    ]
    return ["| parameter | in | required | meaning |", "| --- | --- | --- | --- |", *rows, ""]
