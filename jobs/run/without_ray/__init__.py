"""Runs in this process, and in worker processes of this machine, without Ray."""
