"""The spec of a job: its fields, its checks, and the experiment that is built from it."""

from jobs.spec.fields import MAX_ROUNDS, Choice, PartitionSection
from jobs.spec.job_spec import JobSpec, json_schema, load_spec, parse_spec, preset_text, presets, read_spec
from jobs.spec.sections.curriculum_fields import Curriculum
from jobs.spec.spec_text import apply_overrides, parse_text

__all__ = [
    "MAX_ROUNDS",
    "Choice",
    "Curriculum",
    "JobSpec",
    "PartitionSection",
    "apply_overrides",
    "json_schema",
    "load_spec",
    "parse_spec",
    "parse_text",
    "preset_text",
    "presets",
    "read_spec",
]
