"""Many clients as one local loop: stacked parameters, and one call of the loss under `torch.func.vmap`."""
