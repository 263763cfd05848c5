"""Drawings and pictures of the pages."""
