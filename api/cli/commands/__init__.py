"""The commands of `fedsim`, one file for each subject. They import late, so that help comes at once."""
