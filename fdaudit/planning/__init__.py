"""Resolve a spec to a case and set up its run directory."""
