"""Texts as records: files, and the numbers of their words."""
