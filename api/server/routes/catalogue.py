"""The catalogue: what a spec can name, the presets, and the schema of a spec."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from api.server.dependencies import ServiceOf
from api.server.service import CatalogueKind
from jobs.spec import json_schema, preset_text, presets

router = APIRouter(tags=["catalogue"])


class CatalogueEntry(BaseModel):
    """Something that a spec can name."""

    model_config = ConfigDict(extra="allow")

    name: str
    summary: str
    parameters: dict[str, Any] = Field(description="The JSON schema of its parameters.")
    plugin: str = Field(description="The package and version that bring it; empty for fedsim's own.")


class Preset(BaseModel):
    """A spec that comes with the service."""

    name: str
    summary: str
    text: str = Field(description="The spec as YAML, with its comments.")


@router.get("/algorithms")
def list_algorithms(service: ServiceOf) -> list[CatalogueEntry]:
    """List the methods."""
    return _entries(service, "algorithms")


@router.get("/models")
def list_models(service: ServiceOf) -> list[CatalogueEntry]:
    """List the models."""
    return _entries(service, "models")


@router.get("/datasets")
def list_datasets(service: ServiceOf) -> list[CatalogueEntry]:
    """List the data sets, with where each looks for its files."""
    return _entries(service, "datasets")


@router.get("/partitions")
def list_partitions(service: ServiceOf) -> list[CatalogueEntry]:
    """List the ways to deal a data set out to clients."""
    return _entries(service, "partitions")


@router.get("/presets")
def list_presets() -> list[Preset]:
    """List the specs that come with the service."""
    return [Preset(name=name, summary=summary, text=preset_text(name)) for name, summary in presets().items()]


@router.get("/schema")
def get_schema() -> dict[str, Any]:
    """Get the JSON schema of a spec."""
    return json_schema()


def _entries(service: ServiceOf, kind: CatalogueKind) -> list[CatalogueEntry]:
    return [CatalogueEntry.model_validate(entry) for entry in service.catalogue.list_entries(kind)]
