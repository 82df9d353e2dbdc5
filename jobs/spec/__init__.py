"""The spec of a job: its fields, its checks, and the experiment that is built from it."""

from jobs.spec.fields import (
    MAX_CLIENTS,
    MAX_NAME,
    MAX_ROUNDS,
    Choice,
    Clients,
    LocalSection,
    PartitionSection,
)
from jobs.spec.job_spec import JobSpec, json_schema, load_spec, parse_spec, preset_text, presets, read_spec
from jobs.spec.sections.curriculum_fields import Curriculum
from jobs.spec.sections.data_fields import ClientTests, Data, Public
from jobs.spec.sections.evaluation_fields import Evaluation
from jobs.spec.sections.run_fields import Checkpointing, FaultsSection, Resources, Stop
from jobs.spec.spec_text import apply_overrides, parse_text

__all__ = [
    "MAX_CLIENTS",
    "MAX_NAME",
    "MAX_ROUNDS",
    "Checkpointing",
    "Choice",
    "ClientTests",
    "Clients",
    "Curriculum",
    "Data",
    "Evaluation",
    "FaultsSection",
    "JobSpec",
    "LocalSection",
    "PartitionSection",
    "Public",
    "Resources",
    "Stop",
    "apply_overrides",
    "json_schema",
    "load_spec",
    "parse_spec",
    "parse_text",
    "preset_text",
    "presets",
    "read_spec",
]
