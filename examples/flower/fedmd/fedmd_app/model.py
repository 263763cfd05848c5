"""The network of a site. FedMD lets every site choose its own; here all have the same."""

import torch
from torch import nn


class Net(nn.Module):
    """A perceptron with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return class scores (n, 10) for digits (n, 1, 8, 8)."""
        scores: torch.Tensor = self.layers(x)
        return scores
