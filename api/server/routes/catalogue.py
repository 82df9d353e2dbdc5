"""The catalogue: the names of a spec with their parameters, presets, and the JSON schema of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.server.dependencies import ServiceOf
from jobs.spec import json_schema, preset_text, presets

if TYPE_CHECKING:
    from jobs.spec.catalogue import Kind

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


@router.get("/models")
def list_models(service: ServiceOf) -> list[CatalogueEntry]:
    """List the models."""
    return _entries(service, "models")


@router.get("/datasets")
def list_datasets(service: ServiceOf) -> list[CatalogueEntry]:
    """List the data sets and the folders where fedsim looks for their files."""
    return _entries(service, "datasets")


@router.get("/partitions")
def list_partitions(service: ServiceOf) -> list[CatalogueEntry]:
    """List the partitions: ways to divide a data set among clients."""
    return _entries(service, "partitions")


@router.get("/samplers")
def list_samplers(service: ServiceOf) -> list[CatalogueEntry]:
    """List the samplers: ways to select the clients of a round."""
    return _entries(service, "samplers")


@router.get("/attacks")
def list_attacks(service: ServiceOf) -> list[CatalogueEntry]:
    """List the attacks of malicious clients."""
    return _entries(service, "attacks")


@router.get("/aggregators")
def list_aggregators(service: ServiceOf) -> list[CatalogueEntry]:
    """List the robust rules in place of the mean of the clients' models."""
    return _entries(service, "aggregators")


@router.get("/compressors")
def list_compressors(service: ServiceOf) -> list[CatalogueEntry]:
    """List the compressors of what clients send."""
    return _entries(service, "compressors")


@router.get("/optimizers")
def list_optimizers(service: ServiceOf) -> list[CatalogueEntry]:
    """List the optimizers of local steps."""
    return _entries(service, "optimizers")


@router.get("/schedules")
def list_schedules(service: ServiceOf) -> list[CatalogueEntry]:
    """List the schedules of the learning rate."""
    return _entries(service, "schedules")


@router.get("/fleets")
def list_fleets(service: ServiceOf) -> list[CatalogueEntry]:
    """List the fleets: the devices of the clients, for the simulated clock."""
    return _entries(service, "fleets")


@router.get("/policies")
def list_policies(service: ServiceOf) -> list[CatalogueEntry]:
    """List the policies: for whom the server waits in a round."""
    return _entries(service, "policies")


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
