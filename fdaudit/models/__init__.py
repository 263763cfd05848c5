"""The networks that parties train: named architectures, built with explicit randomness."""

from fdaudit.models.network import Network
from fdaudit.models.zoo import MODELS, PAPER_TABLES, Architecture, architecture, paper_model

__all__ = ["MODELS", "PAPER_TABLES", "Architecture", "Network", "architecture", "paper_model"]
