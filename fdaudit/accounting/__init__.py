"""Accounting: the ε that an adversary's view costs."""
