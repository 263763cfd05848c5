"""Networks whose weights come from local files."""
