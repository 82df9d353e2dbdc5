"""Checkpoints: the server state, the client states and the records of a run, from which it goes on."""
