"""Settings of every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Read once, when torch is first imported: threads that wait for each other sleep instead of spinning, so
# that tests stay quick on a machine with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

torch.set_num_threads(1)  # before any fixture of a module; small operations gain nothing from a second thread


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """One thread, since tests are small; and no switch stays as a run has set it."""
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
