"""FedFTG."""
