"""Score attackers' guesses against the truth."""
