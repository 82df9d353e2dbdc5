"""The local loop, its losses and optimizers, and the cost of training in parameter updates and FLOPs."""
