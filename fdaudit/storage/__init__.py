"""Files, tensors, digests, vault, cache and locks: durable and checked."""
