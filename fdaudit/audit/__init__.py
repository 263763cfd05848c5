"""The pipeline of a run, and its result."""
