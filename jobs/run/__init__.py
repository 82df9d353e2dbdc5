"""The run of one job: the runner, its attempts, the ledger of rounds, and the files of the job."""
