"""Images that are normalised, a small convolutional network, and SGD with momentum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

RATE, MOMENTUM = 0.1, 0.9


class Net(nn.Module):
    """Two convolutions with strides, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 2, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 2, 1)
        self.fc = nn.Linear(64 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, 10) for digits (n, 1, 8, 8)."""
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def digits() -> tuple[Tensor, Tensor]:
    """Return digits (n, 1, 8, 8) in [0, 1] and their classes (n,)."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images.astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    return x, torch.from_numpy(labels)


def normalised(x: Tensor) -> Tensor:
    """Return images as `Normalize((0.5,), (0.5,))` of torchvision makes them."""
    return (x - 0.5) / 0.5


def partition(site: int, records: int) -> TensorDataset:
    """Return the records of a site, as its network gets them."""
    x, y = digits()
    rows = slice(site * records, (site + 1) * records)
    return TensorDataset(normalised(x[rows]), y[rows])


def train(
    state: Mapping[str, Tensor], dataset: TensorDataset | Subset[tuple[Tensor, ...]], batch: int
) -> Net:
    """Return the network after one pass over a dataset."""
    model = Net()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for x, y in DataLoader(dataset, batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model
