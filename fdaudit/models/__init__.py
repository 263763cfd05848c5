"""The networks that parties train: named architectures, built with explicit randomness."""

from fdaudit.models.network import Network
from fdaudit.models.zoo import MODELS, Architecture, architecture

__all__ = ["MODELS", "Architecture", "Network", "architecture"]
