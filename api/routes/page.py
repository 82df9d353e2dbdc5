"""The page: a shell without data, its script and style, and the chart library from the plotly package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

router = APIRouter(include_in_schema=False)

PAGE = Path(__file__).parent.parent / "page"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load: its own files and nothing else, nothing inline."""


class Cached(StaticFiles):
    """Files that a browser keeps for a while, and asks about afterwards by their ETag."""

    def __init__(self, directory: Path, seconds: int) -> None:
        super().__init__(directory=directory)
        self.seconds = seconds

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Serve one file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={self.seconds}"
        return response


@router.get("/")
def page() -> FileResponse:
    """Serve the page."""
    return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})


@router.get("/favicon.ico")
def icon() -> FileResponse:
    """Serve the icon."""
    return FileResponse(PAGE / "icon.svg", media_type="image/svg+xml")


def mount(app: FastAPI) -> None:
    """Add the page and its files to `app`."""
    app.include_router(router)
    app.mount("/static/chart", Cached(_chart_library(), seconds=86_400), name="chart")
    app.mount("/static", Cached(PAGE, seconds=0), name="static")


def _chart_library() -> Path:
    # Found without importing it: the import takes longer than the rest of the server.
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the package plotly is missing; install fedsim-ray with its dependencies")
    return Path(found.origin).parent / "package_data"
