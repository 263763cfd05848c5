"""Figures about images."""
