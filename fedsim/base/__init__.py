"""What everything stands on: trees of tensors, random streams, wire costs, digests, parameter checks."""
