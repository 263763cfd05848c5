"""Protocols: one file each, in the order of the paper's algorithm box."""
