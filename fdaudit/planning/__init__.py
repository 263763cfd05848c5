"""Resolve a spec to a plan and set up its run directory."""
