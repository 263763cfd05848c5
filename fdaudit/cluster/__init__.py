"""Execution on Ray clusters; Ray is imported only when it is used."""
