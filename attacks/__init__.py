"""Attacks: a view, declared knowledge and a budget in; guesses out."""
