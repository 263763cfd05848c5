"""Galleries of a run: who is in them, and what verdicts follow from picking records out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.reports.goals.identification import LOOK
from fdaudit.reports.judgement.correction import Correction
from fdaudit.reports.judgement.verdict import judge

import fdaudit.scoring.galleries
from fdaudit.data import load_dataset
from fdaudit.errors import DataError
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.metrics import Gallery, Probe
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.result import Cell, Control, Controls, Image, Target
from fdaudit.scoring.galleries import gallery_tests
from fdaudit.spec.schema import DatasetSpec, load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.types import Figure

from ..helpers.run_cases import known, stream

# -- who is in a gallery ----------------------------------------------------------------------------------------


def _case(**changes: Any) -> Case:
    spec = small_spec(clients=3, dataset={"name": "digits", "limit": 400}, splits__proxy=0.2, **changes)
    return simulated_case(load_spec(spec), known(7))


def _tested(
    case: Case, monkeypatch: pytest.MonkeyPatch, adversary: str, rows: torch.Tensor
) -> tuple[Gallery, list[Probe]]:
    """The gallery and the probes of a reconstruction of client/1 that an adversary made."""
    seen: list[Any] = []
    real = fdaudit.scoring.galleries.identify
    monkeypatch.setattr(fdaudit.scoring.galleries, "identify", lambda *a: seen.append(a) or real(*a))
    guess = Reconstruction(target="client/1", messages=(1,), images=case.dataset.x[rows])
    found = gallery_tests(case, [guess], [rows], adversary.split("+"), np.random.default_rng(0))
    assert {f.name for f in found.figures} >= {"identification", "identification_chance"}
    return seen[0][0], seen[0][1]


def test_galleries_leave_out_what_the_adversary_holds_and_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(canaries={"count": 6, "kind": "noise"})
    splits = case.splits
    rows = splits.clients[1].train
    gallery, (probe,) = _tested(case, monkeypatch, "server+client/0", rows)
    canaries = torch.cat([c.canaries for c in splits.clients])
    held = torch.cat([splits.auxiliary, splits.proxy, splits.clients[0].train, canaries])
    inside = {image.numpy().tobytes() for image in gallery.images}
    assert not inside & {image.numpy().tobytes() for image in case.dataset.x[held]}
    true = rows[~torch.isin(rows, canaries)]
    assert torch.equal(gallery.images[torch.from_numpy(probe.rows)], case.dataset.x[true])
    assert np.array_equal(gallery.groups[probe.rows], case.dataset.y[true].numpy())
    assert len(gallery.groups) > len(true)


def test_another_client_is_in_the_gallery_of_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case()
    gallery, _ = _tested(case, monkeypatch, "server", case.splits.clients[1].train)
    inside = {image.numpy().tobytes() for image in gallery.images}
    own = case.dataset.x[case.splits.clients[0].train]
    assert inside & {image.numpy().tobytes() for image in own}


def test_perfect_guesses_are_identified_and_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case()
    rows = case.splits.clients[1].train[:12]
    guess = Reconstruction(target="client/1", messages=(1,), images=case.dataset.x[rows])
    found = gallery_tests(case, [guess], [rows], ["server"], np.random.default_rng(0))
    (rate,) = [f for f in found.figures if f.name == "identification"]
    assert rate.value == 1.0
    assert rate.p is not None
    assert rate.p < 1e-3
    assert sorted(found.ranks["client/1"]) == list(range(12))
    assert {r.rank for r in found.ranks["client/1"].values()} == {1}


# -- identities -------------------------------------------------------------------------------------------------


def _npz(folder: Path, **more: Any) -> DatasetSpec:
    rng = np.random.default_rng(0)
    np.savez(
        folder / "people.npz",
        train_images=rng.integers(0, 256, (40, 8, 8), dtype=np.uint8),
        train_labels=np.arange(40) % 2,
        **more,
    )
    return DatasetSpec(name=f"npz:{folder / 'people.npz'}", limit=20)


def test_identities_follow_the_records_that_are_kept(tmp_path: Path) -> None:
    data = load_dataset(_npz(tmp_path, train_identities=np.arange(40)[:, None] // 4), stream(1, "d"))
    whole = load_dataset(
        _npz(tmp_path, train_identities=np.arange(40) // 4).model_copy(update={"limit": None}), stream(1, "d")
    )
    assert data.identities is not None
    assert whole.identities is not None
    for image, who in zip(data.x, data.identities, strict=True):
        (place,) = [k for k, other in enumerate(whole.x) if torch.equal(image, other)]
        assert whole.identities[place] == who
    assert data.sha256() != load_dataset(_npz(tmp_path), stream(1, "d")).sha256()


@pytest.mark.parametrize("wrong", [np.zeros(39, np.int64), np.zeros(40), np.zeros((40, 2), np.int64)])
def test_identities_that_do_not_fit_are_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(DataError, match="train_identities"):
        load_dataset(_npz(tmp_path, train_identities=wrong), stream(1, "d"))


# -- verdicts ---------------------------------------------------------------------------------------------------

PASSED = Controls(
    positive=Control(what="bare gradient", passed=True), negative=Control(what="noise", passed=True)
)


def _judged(rate: float, low: float, p: float, chance: float = 0.1, tests: int = 1) -> tuple[str, Any]:
    """The verdict on pictures that lie below the prior by 2 dB."""
    figures = (
        Figure(name="psnr_gain", value=-2.0, low=-3.0, high=-1.0, unit="dB"),
        Figure(name="psnr", value=15.0, unit="dB"),
        Figure(name="identification", value=rate, low=low, high=1.0, n=40, unit="fraction", p=p),
        Figure(name="identification_chance", value=chance, unit="fraction"),
    )
    images = (Image(truth="t", guess="g", psnr=15.0, prior_psnr=17.0, rank=1, gallery=9),)
    found = judge(
        Cell(
            id="server/a",
            protocol="fedavg",
            adversary="server",
            attack="a",
            goal="reconstruction",
            status="run",
            figures=figures,
            targets=(Target(target="client/0", figures=(figures[0],), images=images),),
            controls=PASSED,
        ),
        correction=Correction(tests=tests),
    )
    return found.level, found


def test_identified_faces_are_a_leak_and_few_a_partial_one() -> None:
    level, found = _judged(0.67, 0.5, 1e-4)
    assert level == "leak"
    assert "picked out" in found.because
    assert LOOK not in found.cautions
    assert _judged(0.2, 0.15, 1e-4)[0] == "partial"
    assert _judged(0.3, 0.15, 1e-4)[0] == "partial"  # not beyond twice chance
    assert _judged(0.67, 0.5, 1e-3)[0] == "leak"
    assert _judged(0.67, 0.5, 1e-3, tests=100)[0] == "possible"


@pytest.mark.parametrize(("rate", "p"), [(0.67, 0.06), (0.1, 1e-4), (0.05, 1e-4)])
def test_luck_and_rates_of_chance_are_no_leak_and_carry_the_caution(rate: float, p: float) -> None:
    level, found = _judged(rate, 0.5 * rate, p)
    assert level == "none-seen"
    assert LOOK in found.cautions
