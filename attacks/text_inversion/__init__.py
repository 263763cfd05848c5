"""Attacks that recover the words of texts from gradients and updates."""
