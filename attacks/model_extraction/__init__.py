"""Attacks that copy a model: a surrogate is fitted to the model's answers."""
