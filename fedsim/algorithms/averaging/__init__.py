"""Methods whose result is one model for everybody, averaged from those of the clients."""
