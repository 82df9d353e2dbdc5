"""The clients of a federation: their examples, their client tasks and the batches of each local step."""
