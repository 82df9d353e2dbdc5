"""The queue: the dispatcher, the capacity of the cluster, and keeping store and cluster together."""
