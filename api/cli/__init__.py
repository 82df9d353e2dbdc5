"""The `fedsim` command."""
