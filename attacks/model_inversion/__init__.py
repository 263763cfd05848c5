"""Attacks on a model's knowledge of classes: they reconstruct images of its training classes."""
