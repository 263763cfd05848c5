"""The protocol contract, parties, local training, rehearsals."""
