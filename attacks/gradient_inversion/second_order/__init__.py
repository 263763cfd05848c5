"""Gradients of gradients, layer by layer."""
