"""FedKD."""
