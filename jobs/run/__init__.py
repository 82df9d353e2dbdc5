"""A run of one job: the runner, the coordinator it drives, the ledger and the files it leaves."""
