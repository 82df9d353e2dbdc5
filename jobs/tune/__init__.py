"""The search for good values of a spec's fields: `fedsim tune` and `fedsim.tune`.

`space` reads the values to try, `sampler` proposes them (Optuna), `halving` decides which trial trains next
and for how many rounds, `trial` trains one, `record` keeps what has been found, `search` is the loop.
"""
