"""Five protocols on the same records."""
