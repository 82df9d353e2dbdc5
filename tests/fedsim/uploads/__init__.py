"""Tests of attacks, privacy and robust aggregation."""
