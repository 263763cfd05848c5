"""Figures of recovered texts."""
