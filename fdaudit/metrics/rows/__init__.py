"""Figures of recovered rows of tables."""
