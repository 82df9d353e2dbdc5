"""The round engine: the round loop, the pools that run clients, reduction, evaluation, faults and results."""
