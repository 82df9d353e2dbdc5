"""Result tables: grids of runs, made once however often interrupted, and the claims that they decide.

A table is a YAML file of `tables`: a preset, axes of named `--set` items, seeds, and claims. A finished run
is one line of the table's journal and is never made again. `fedsim reproduce` makes the runs in processes on
this machine, on Ray, or as jobs of a service; the digests are the same.
"""
