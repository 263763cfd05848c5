"""The networks that parties train: named architectures, built with explicit randomness."""

from fdaudit.models.network import Network
from fdaudit.models.zoo import MODELS, SEED_TABLES, Architecture, ModelSpec, architecture, seed_model

__all__ = ["MODELS", "SEED_TABLES", "Architecture", "ModelSpec", "Network", "architecture", "seed_model"]
