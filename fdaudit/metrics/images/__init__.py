"""Figures about pictures."""
