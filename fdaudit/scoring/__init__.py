"""What was true, and what guesses about it are worth."""
