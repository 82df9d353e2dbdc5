"""The sections of a spec, as pydantic models."""
