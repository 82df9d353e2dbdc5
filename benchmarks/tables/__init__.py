"""Result tables: a grid of specs and seeds, run to the end however often it is interrupted, and rendered.

    python -m benchmarks.tables list                        # the tables, and how far each is
    python -m benchmarks.tables run NAME --processes 2      # start, or go on where it stopped
    python -m benchmarks.tables render NAME                 # write it into docs/results.md

A table is a YAML file in this folder: a preset, axes of named `--set` items, seeds. Every run is one spec in
one process with the serial pool, so `fedsim run` with the same `--set` items gives the same digests. Finished
runs stand in benchmarks/results/NAME.jsonl, one line each; a run that stands there is never run again, and
one that another table has made is taken from its journal.
"""
