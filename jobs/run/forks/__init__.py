"""The runners of a local Ray as forks of a process that has imported torch: who forks, and who asks."""
