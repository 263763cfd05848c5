"""Threads, processes and memory. Imports nothing of fdaudit except errors."""
