"""The similarity of generated and real features, class by class (paper 003, Fig. 7).

    python -m benchmarks.similarity              # makes the missing runs of kdia-cifar10-small
    python -m benchmarks.similarity --render     # writes its section of docs/results/kdia.md

For each beta and seed, an expert is trained: a model of the same architecture, on everybody's data, for some
epochs. The paper's expert has an accuracy of 0.81; the table has the accuracy of ours. Then KDIA runs in two
ways: with labels drawn for a whole pass (`pass`), and with the labels of the clients' batches (`data`). After
the last round, the features of the generator and of an untrained generator are compared with the expert's
features of the test set (`benchmarks.similarity.features`). Each run is one line of
benchmarks/results/kdia-similarity.jsonl and is never run again, so the command can be stopped at any time.
"""
