"""Evidence: the same guess has the same figures in every cell, and is scored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fdaudit.goals import Guess
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.membership import Membership
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring.evidence import EvidenceScores, draws_of, evidence_of
from fdaudit.scoring.goals import membership, reconstruction
from fdaudit.scoring.goals.scorer import Inputs
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.scoring import Scorer
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Vault

from ..helpers.run_cases import known, tiny

CELLS = ("server/one", "eavesdropper/one", "world/another")


@pytest.fixture(scope="module")
def case() -> Case:
    spec = tiny(clients=3, dataset={"name": "digits", "limit": 400}, splits__proxy=0.2)
    return simulated_case(load_spec(spec), known(7))


@pytest.fixture
def scorer(case: Case, tmp_path: Path) -> Scorer:
    truth = Truth(case, Vault(tmp_path / "vault"))
    answering: Any = None  # only copies of models are compared with it
    return Scorer(Inputs(truth=truth, run=tmp_path, answering=answering, encode=None))


def _memberships(case: Case) -> list[Guess]:
    draws = np.random.default_rng(1)
    truth = Truth(case, Vault(Path()))
    sizes = {client: len(truth.challenge(client)[1]) for client in case.clients[:2]}
    return [Membership(target=k, scores=torch.from_numpy(draws.random(n))) for k, n in sizes.items()]


def _classes(case: Case) -> list[Guess]:
    x, y = case.auxiliary
    rows = [int((y == label).nonzero()[0]) for label in range(4)]
    return [Reconstruction(target=k, messages=(), images=x[rows], labels=y[rows]) for k in case.clients[:2]]


def _shares(case: Case) -> list[Guess]:
    shares = torch.full((case.dataset.classes,), 1 / case.dataset.classes, dtype=torch.float64)
    return [LabelDistribution(target=k, distribution=shares) for k in case.clients]


@pytest.mark.parametrize("guesses", [_memberships, _classes, _shares])
def test_the_same_evidence_has_the_same_figures_in_every_cell(
    scorer: Scorer, case: Case, guesses: Any
) -> None:
    first, *others = (scorer.score(cell, guesses(case)) for cell in CELLS)
    assert any(figure.low is not None for figure in first[0])
    for figures, targets in others:
        assert figures == first[0]
        assert [t.figures for t in targets] == [t.figures for t in first[1]]


@pytest.mark.parametrize(
    ("guesses", "module", "name", "scores"),
    [
        (_memberships, membership, "score_membership", 3),  # of both victims, and of each
        (_classes, reconstruction, "score_classes", 3),
        (_classes, reconstruction, "evaluate_classes", 3),
        (_classes, reconstruction, "gallery_tests", 1),
    ],
)
def test_evidence_is_scored_once(
    scorer: Scorer,
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    guesses: Any,
    module: Any,
    name: str,
    scores: int,
) -> None:
    made = list[str]()
    real = getattr(module, name)

    def counted(*args: Any, **more: Any) -> Any:
        made.append(name)
        return real(*args, **more)

    monkeypatch.setattr(module, name, counted)
    for cell in CELLS:
        scorer.score(cell, guesses(case))
    assert len(made) == scores


def test_a_gallery_is_drawn_anew_for_an_adversary_that_holds_records(
    scorer: Scorer, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = list[Any]()
    real = reconstruction.gallery_tests

    def counted(*args: Any) -> Any:
        held.append(args[3])
        return real(*args)

    monkeypatch.setattr(reconstruction, "gallery_tests", counted)
    for adversary in ("server", "client/2", "server+client/2", "aggregator"):
        scorer.score(f"{adversary}/one", _classes(case))
    assert held == [[], ["client/2"]]


def test_names_tell_evidence_apart() -> None:
    images, labels = torch.zeros(2, 1, 3, 3), torch.zeros(2)
    names = [
        evidence_of(["client/0"], {"images": images, "labels": labels}),
        evidence_of(["client/1"], {"images": images, "labels": labels}),
        evidence_of(["client/0"], {"images": images + 1e-6, "labels": labels}),
        evidence_of(["client/0"], {"images": images, "labels": None}),
        evidence_of(["client/0"], {"images": images.flatten(1), "labels": labels}),
    ]
    assert len(set(names)) == len(names)
    assert evidence_of(["client/0"], {"images": images}) == names[3]


def test_draws_belong_to_the_seed_the_score_and_the_evidence() -> None:
    names = [(1, "images", "a"), (2, "images", "a"), (1, "labels", "a"), (1, "images", "b")]
    values = [draws_of(*name).random() for name in names]
    assert len(set(values)) == len(names)
    assert draws_of(*names[0]).random() == values[0]


def test_the_least_recently_used_score_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdaudit.scoring.evidence._MOST_KEPT", 2)
    scores, made = EvidenceScores(0), list[str]()

    def score(name: str) -> float:
        return scores.once("x", name, lambda draws: made.append(name) or draws.random())

    first = score("a")
    for name in ("b", "a", "c", "a", "b"):
        score(name)
    assert made == ["a", "b", "c", "b"]
    assert score("a") == first
