"""What a worker of Ray's loads."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["ray_worker", "ray_attack_worker"])
def test_a_worker_of_rays_does_not_load_pytorch(module: str) -> None:
    """It would before the process that runs the cell does: twice the time until the first begins."""
    code = f"import sys, fdaudit.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
