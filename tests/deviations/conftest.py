"""Images that several tests of deviations share."""

from __future__ import annotations

import pytest
import torch

from fdaudit.data import load_dataset
from fdaudit.spec.schema import DatasetSpec

from ..helpers.run_cases import known


@pytest.fixture(scope="session")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 1, 8, 8) and their classes."""
    data = load_dataset(DatasetSpec(name="digits"), known(3).truth("dataset"))
    return data.x, data.y
