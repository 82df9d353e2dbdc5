"""Algorithms that average the clients' models into one global model."""
