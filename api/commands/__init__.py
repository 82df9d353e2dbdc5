"""The commands of `fedsim`, one file for each thing they are about. They import late, so that help comes at once."""
