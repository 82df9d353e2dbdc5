"""Jobs: the spec, the store, the queue and the runner of fedsim.

A spec (`jobs.spec`) becomes a row of the store (`jobs.store`); the dispatcher (`jobs.dispatch`) hands it to
Ray when its turn comes; the runner (`jobs.runner`) is what Ray starts, and writes every round to the store.
"""
