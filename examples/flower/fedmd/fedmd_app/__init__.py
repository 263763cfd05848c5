"""FedMD on digits."""
