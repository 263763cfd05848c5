"""Settings of every test."""

from __future__ import annotations

import os

# Read once, when torch is first imported: threads that wait for each other sleep instead of spinning, so
# that tests stay quick on a machine with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # after the variable above

# Small operations gain nothing from a second thread, and lose much on a busy machine.
torch.set_num_threads(1)
