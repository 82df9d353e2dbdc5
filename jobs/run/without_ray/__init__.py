"""Runs in this process, without Ray."""
