"""The loaders: one file per data set or file format; they are registered in `fedsim.data`."""
