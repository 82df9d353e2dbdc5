"""The catalogue: the names of a spec with their parameters, presets, and the JSON schema of a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.server.dependencies import ServiceOf
from jobs.kinds import KINDS, Kind
from jobs.spec import json_schema, preset_text, presets

router = APIRouter(tags=["catalogue"])


class CatalogueEntry(BaseModel):
    """An algorithm, a model, or any other entry of the catalogue."""

    model_config = ConfigDict(extra="allow")

    name: str
    summary: str
    parameters: dict[str, Any] = Field(description="JSON schema of the parameters.")
    plugin: str = Field(description="Package and version of the plug-in; empty for built-in entries.")


class Preset(BaseModel):
    """A spec that comes with fedsim."""

    name: str
    summary: str
    text: str = Field(description="The spec as YAML with comments.")


@router.get("/algorithms")
def list_algorithms(
    service: ServiceOf,
    purpose: Annotated[
        str | None,
        Query(
            alias="for", max_length=100, description="Only algorithms for a purpose, such as `label-skew`."
        ),
    ] = None,
) -> list[CatalogueEntry]:
    """List the algorithms, each with its purposes, its paper and its costs relative to FedAvg."""
    if purpose is None:
        return _entries(service, "algorithms")
    from jobs.spec.catalogue import filter_by_purpose

    found = filter_by_purpose(service.catalogue.list_entries("algorithms"), purpose)
    return [CatalogueEntry.model_validate(entry) for entry in found]


def _make_route(kind: Kind) -> Callable[[ServiceOf], list[CatalogueEntry]]:
    def list_entries(service: ServiceOf) -> list[CatalogueEntry]:
        return _entries(service, kind)

    return list_entries


for _kind, (_, _text) in KINDS.items():
    router.get(f"/{_kind}", name=f"list_{_kind}", description=_text)(_make_route(_kind))


@router.get("/presets")
def list_presets() -> list[Preset]:
    """List the presets: specs that come with fedsim."""
    return [Preset(name=name, summary=summary, text=preset_text(name)) for name, summary in presets().items()]


@router.get("/schema")
def get_schema() -> dict[str, Any]:
    """Get the JSON schema of a spec."""
    return json_schema()


def _entries(service: ServiceOf, kind: Kind) -> list[CatalogueEntry]:
    return [CatalogueEntry.model_validate(entry) for entry in service.catalogue.list_entries(kind)]
