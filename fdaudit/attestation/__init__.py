"""Evidence of a run that can be handed on: its files under a signed statement, and the check of it."""
