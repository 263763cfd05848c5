"""Privacy-loss distributions: dominating pairs, their composition, and what other tools read of them."""
