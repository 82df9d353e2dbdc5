"""Ray actors: the clients of a federation on fractions of GPUs, and the coordinator that is its server."""
