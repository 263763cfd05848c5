"""The audit pipeline of a run, and its result."""
