"""Trials of a network for single purposes."""
