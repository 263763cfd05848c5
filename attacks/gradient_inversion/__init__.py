"""Gradient inversion: private inputs from gradients and updates."""
