"""Attacks run here in processes of their own, which hold what the attack is given and nothing else."""
