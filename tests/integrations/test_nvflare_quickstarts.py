"""First jobs of NVIDIA FLARE, rebuilt small: recorded in its simulator, imported, and attacked."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the extra `nvflare`")

from numpy.typing import NDArray

from .processes import Processes
from .quickstarts import tabular, vision
from .strangers import Stranger

pytestmark = pytest.mark.thorough

FACTS: dict[str, dict[str, Any]] = {
    "vision": {
        "classes": 10,
        "input_shape": [1, 8, 8],
        "preprocess": {"mean": 0.5, "std": 0.5},
        "model": {"name": "import:quickstarts.vision:Net"},
        "protocol": {"name": "hello-pt"},
        "training": {"lr": 0.1, "batch_size": 4, "local_epochs": 1, "momentum": 0.9},
    },
    "tabular": {
        "task": "table",
        "classes": 3,
        "input_shape": [4],
        "model": {"name": "import:quickstarts.tabular:Softmax"},
        "names": {"coef": "linear.weight", "intercept": "linear.bias"},
        "protocol": {"name": "hello-numpy"},
    },
}


def auxiliary(which: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Records that no site has."""
    if which == "vision":
        x, y = vision.digits()
        return vision.normalised(x[-60:]).numpy(), y[-60:].numpy()
    flowers, species = tabular.flowers(0, 1)
    return flowers + 0.01, species


@pytest.mark.parametrize("which", FACTS)
def test_a_job_is_recorded_imported_and_attacked(which: str, stranger: Stranger) -> None:
    home = stranger.home
    with Processes(home, {"PYTHONPATH": str(home), "PYTHONSAFEPATH": "1"}) as running:
        job = running.start(
            "job", sys.executable, str(home / "quickstarts" / "flare_job.py"), which, str(home)
        )
        running.until(lambda: job.poll() is not None, "end of the job")
        print(running.logs())  # for the message of a failure
    x, y = auxiliary(which)
    np.savez(stranger.truth / "auxiliary.npz", x=x, y=y)
    said = stranger.imported(**FACTS[which])
    assert "in 2 rounds" in said
    assert "records.npz" not in said, "the sites' records are there"
    assert "uses.jsonl" not in said, "which records each upload used is there"
    assert "left out" not in said
    released = stranger.attacked("loss-threshold", "world")
    assert "candidates" in released["reason"]
    cell = stranger.attacked("label-updates")
    assert cell["status"] in ("run", "inconclusive"), cell["reason"]
