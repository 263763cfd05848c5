"""Directories behind URLs."""
