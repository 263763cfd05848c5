"""What is sent and recorded."""
