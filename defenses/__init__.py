"""Defences: applied where data leaves a party."""
