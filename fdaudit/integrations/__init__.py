"""Adapters that record the messages of other frameworks: Flower and NVIDIA FLARE.

Each module imports its framework, NumPy and the recorder, and nothing else of fdaudit.
"""
