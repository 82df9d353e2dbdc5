"""Jobs: the spec, the store, the queue and the runner of fedsim.

A spec (`jobs.spec`) becomes a row of the store (`jobs.store.job_store`); the dispatcher
(`jobs.queue.dispatcher`) hands it to Ray when its turn comes; the runner (`jobs.run.runner`) is what Ray
starts, and writes every round to the store.
"""
