"""Tools that all of fedsim uses: trees of tensors, random streams, traffic, digests, parameter checks."""
