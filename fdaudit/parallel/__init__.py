"""Threads, processes and memory; nothing of fdaudit but errors."""
