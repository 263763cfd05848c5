"""fdaudit: privacy auditing, attacks and defences for federated distillation."""
