"""Asynchronous rounds: clients train on older models than the server's."""
