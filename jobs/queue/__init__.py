"""The queue: the dispatcher, the capacity of the cluster, and the reconciler of store and cluster."""
