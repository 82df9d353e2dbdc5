"""Checkpoints: the server state, the client states and the records of a run, to continue it later."""
