"""Methods in which clients and server learn from predictions rather than from parameters."""
