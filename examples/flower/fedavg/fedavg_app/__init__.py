"""FedAvg on digits."""
