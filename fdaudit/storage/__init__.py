"""Durable, checked storage: files, tensors, digests, vault, cache and locks."""
