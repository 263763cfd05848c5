"""Messages between parties, and the transcript that records them."""
