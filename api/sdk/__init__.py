"""The Python SDK: `FedSimClient` and `AsyncFedSimClient`."""
