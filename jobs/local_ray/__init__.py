"""The local Ray of `fedsim serve`, its keeper process, and the state of a cluster."""
