"""Sweeps: grids of runs."""
