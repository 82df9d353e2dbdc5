"""The Ray that `fedsim serve` brings along, its keeper, and what a cluster has."""
