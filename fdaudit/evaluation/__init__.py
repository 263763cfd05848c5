"""The attack stage: cells, their processes and controls."""
