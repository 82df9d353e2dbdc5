"""The commands of `fedsim`. They import late, so that `fedsim --help` is fast."""
