"""Scores of the models: the global model, the personal models, the chosen one, averages."""
