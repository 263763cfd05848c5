"""FedIOD."""
