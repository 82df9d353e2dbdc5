"""Measuring an experiment on the actors that would run it."""
