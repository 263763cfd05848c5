"""The one place where models are fitted."""
