"""Stacks: many clients train in one local loop, with stacked parameters and one loss call under `vmap`."""
