"""The spec: what a user writes to describe a run."""
