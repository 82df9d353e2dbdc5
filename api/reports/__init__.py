"""Reports, comparisons and verifications of runs, and the page of a partition."""
