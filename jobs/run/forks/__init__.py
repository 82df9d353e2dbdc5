"""Short jobs as forks of a process that has imported torch: the server that forks, and who asks it."""
