"""Experiment trackers: TensorBoard, MLflow and Weights & Biases, fed by the round records of a run.

`trackers` opens them by name, `background` keeps them away from the run's own thread. Which trackers a run
has, and where they write, is never a part of a spec: a caller of a service must not choose it.
"""
