"""Second-order gradients, layer by layer."""
