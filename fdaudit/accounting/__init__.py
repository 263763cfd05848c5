"""What an adversary's view costs in ε."""
