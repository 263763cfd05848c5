"""Attacks that guess the distribution of a client's records over the classes."""
