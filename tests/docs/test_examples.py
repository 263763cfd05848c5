"""The example specs: each is valid, and can be planned where its data is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fdaudit.errors import DataError
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec

from ..helpers.docs_pages import ROOT, page
from ..helpers.run_cases import known

GRIDS = sorted((ROOT / "examples").glob("sweep-*.yaml"))
EXAMPLES = sorted(set((ROOT / "examples").glob("*.yaml")) - set(GRIDS))
PAPER = sorted((ROOT / "examples" / "paper").glob("*.yaml"))
WORKED = sorted(p for d in ("curve", "gate", "hospital") for p in (ROOT / "examples" / d).glob("*.yaml"))
QUICKSTART = sorted((ROOT / "fdaudit" / "quickstart").glob("*.yaml"))
OFFLINE = [
    p for p in [*QUICKSTART, *EXAMPLES] if load_spec(p).dataset.name in ("digits", "digits-multilabel")
]


def test_the_examples_page_names_every_example() -> None:
    assert len(EXAMPLES) >= 6
    for path in [*EXAMPLES, *GRIDS, *QUICKSTART]:
        assert f"`{path.relative_to(ROOT).as_posix()}`" in page("docs/examples.md")


@pytest.mark.parametrize("path", [*QUICKSTART, *EXAMPLES], ids=lambda p: p.stem)
def test_examples_say_what_they_are_about_and_take_the_quick_profile(path: Path) -> None:
    spec = load_spec(path)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert spec.name != "audit"
    assert spec.profile == "quick"
    assert spec.seed is None


@pytest.mark.parametrize("path", WORKED, ids=lambda p: p.stem)
def test_the_specs_of_the_case_studies_load_and_say_what_they_are_about(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert load_spec(path).profile == "quick"


@pytest.mark.parametrize("path", OFFLINE, ids=lambda p: p.stem)
def test_examples_on_digits_can_be_planned(path: Path) -> None:
    case = simulated_case(load_spec(path), known(1))
    assert any(a.params is not None for a in case.attacks)


def test_the_npz_example_takes_a_file_in_medmnist_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    images = draw.integers(0, 256, (400, 28, 28), dtype=np.uint8)
    labels = (np.arange(400) % 2).astype(np.uint8)[:, None]
    arrays = {
        f"{part}_{what}": a
        for part in ("train", "test")
        for what, a in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "pneumoniamnist.npz", **arrays)
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path))
    case = simulated_case(load_spec(ROOT / "examples" / "npz.yaml"), known(1))
    assert case.dataset.classes == 2
    assert case.dataset.input_shape == (1, 28, 28)


def test_the_mnist_example_says_where_its_data_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"MNIST/raw.*FDAUDIT_DATA.*download"):
        simulated_case(load_spec(ROOT / "examples" / "fedavg-mnist.yaml"), known(1))


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is not set")
@pytest.mark.parametrize("name", ["fedavg-mnist", "npz"])
def test_examples_with_data_can_be_planned(name: str) -> None:
    case = simulated_case(load_spec(ROOT / "examples" / f"{name}.yaml"), known(1))
    assert any(a.params is not None for a in case.attacks)
