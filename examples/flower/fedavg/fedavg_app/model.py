"""The network of all parties."""

import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(64 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 10) for digits (n, 1, 8, 8)."""
        logits: torch.Tensor = self.head(self.body(x))
        return logits
