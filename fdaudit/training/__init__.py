"""Model fitting: the only package that trains models."""
