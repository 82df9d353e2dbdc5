"""Jobs: the spec, the store, the queue and the runner of fedsim.

A spec (`jobs.spec`) becomes a row of the store (`jobs.store.job_store`). The dispatcher
(`jobs.queue.dispatcher`) submits the job to Ray when its turn comes. Ray starts the runner
(`jobs.run.runner`), which writes every round to the store.
"""
