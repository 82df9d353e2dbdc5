"""Methods whose server trains a generator of features."""
