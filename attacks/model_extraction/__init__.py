"""Attacks that copy a model: a surrogate fitted to what the model answered."""
