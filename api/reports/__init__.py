"""What is made of runs: reports, comparisons, verifications, pages of a partition."""
