"""Methods that give each client a model, or a part of one, of its own."""
