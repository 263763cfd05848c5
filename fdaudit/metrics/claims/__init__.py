"""Bounds on privacy parameters from what attacks guessed."""
