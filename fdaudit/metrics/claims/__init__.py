"""Bounds on privacy parameters from attacks' guesses."""
