"""What the user writes."""
