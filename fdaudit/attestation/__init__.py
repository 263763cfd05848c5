"""Evidence of a run for third parties: its files under a signed statement, and the check of both."""
