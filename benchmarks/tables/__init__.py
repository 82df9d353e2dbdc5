"""Result tables: a grid of specs and seeds, run to the end however often it is interrupted, and rendered.

    python -m benchmarks.tables list                        # all tables, and the finished runs of each
    python -m benchmarks.tables run NAME --processes 2      # start a table, or go on where it stopped
    python -m benchmarks.tables render NAME                 # write a table into its page of docs/results/
    python -m benchmarks.tables render                      # write all tables whose runs are all finished

A table is a YAML file in this folder: the page of its paper, a preset, axes of named `--set` items, seeds.
Every run is one spec in one process with the serial pool, so `fedsim run` with the same `--set` items gives
the same digests. A finished run is one line of benchmarks/results/NAME.jsonl, the table's journal. It is
never run again. A run that another table has made is copied from that table's journal.
"""
