"""The page: HTML, scripts, style sheets, and the chart library of the plotly package."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

router = APIRouter(include_in_schema=False)

PAGE = Path(__file__).parents[2] / "page"
CHARTS = "plotly.min.js"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # The chart library adds a style sheet when it loads; style attributes stay forbidden.
        "style-src-elem 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The page may load only its own files, and no inline script."""


class PageFiles(StaticFiles):
    """The files of the page: browsers cache the chart library for a day, and check other files by ETag."""

    def __init__(self) -> None:
        super().__init__(directory=PAGE)
        self.charts = _chart_library()

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file."""
        if path == CHARTS:
            return str(self.charts), self.charts.stat()
        return super().lookup_path(path)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Serve a file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=86400" if path == CHARTS else "no-cache"
        response.headers["Content-Security-Policy"] = POLICY
        return response


@router.get("/")
def serve_page() -> FileResponse:
    """Serve the page."""
    return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": POLICY})


@router.get("/favicon.ico")
def serve_icon() -> FileResponse:
    """Serve the icon."""
    return FileResponse(PAGE / "icon.svg", media_type="image/svg+xml")


def mount_page(app: FastAPI) -> None:
    """Add the page and its files to `app`."""
    app.include_router(router)
    app.mount("/static", PageFiles(), name="static")


def _chart_library() -> Path:
    # Found without an import, which takes longer than the start of the server.
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the package plotly is missing; install fedsim-ray with its dependencies")
    return Path(found.origin).parent / "package_data" / CHARTS
