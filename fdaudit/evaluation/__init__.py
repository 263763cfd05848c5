"""The attack stage: cells, worker processes and controls."""
