"""Isolation of attacks: processes that hold an attack's inputs and nothing else."""
