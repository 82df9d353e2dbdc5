"""The federation as the engine sees it: who holds which examples, and the batches of each local step."""
