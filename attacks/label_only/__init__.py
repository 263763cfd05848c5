"""Label-only membership inference, from a model's hard decisions alone."""
