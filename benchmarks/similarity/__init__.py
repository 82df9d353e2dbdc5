"""How like real features a run's generated ones are, class by class (paper 003, Fig. 7).

    python -m benchmarks.similarity              # makes the runs that are missing, of kdia-cifar10-small
    python -m benchmarks.similarity --render     # writes its part of docs/results.md

For each beta and seed an expert, which is a model of the same architecture, is trained for some epochs on
everybody's data (in the paper to an accuracy of 0.81; here its accuracy stands in the table). Then KDIA runs
in both ways: with labels drawn for a whole pass (`pass`), and with those of clients' own batches (`data`).
After the last round the generator's features, and an untrained one's, are held against the expert's of the
test set (`benchmarks.similarity.features`). Each run is a line of benchmarks/results/kdia-similarity.jsonl;
what stands there is not run again, so it can be stopped at any time.
"""
