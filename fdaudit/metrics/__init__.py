"""Metrics: where a guess first meets the truth, as figures with intervals."""
