"""Evidence: equal guesses have equal figures in every cell, are scored once, and never pass for other guesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fdaudit.goals import GOALS, Guess
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.membership import Membership
from fdaudit.goals.model_extraction import Extraction
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.handout.auxiliary import Assumption
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child_seed
from fdaudit.scoring.evidence import EvidenceScores, draws_of, evidence_of
from fdaudit.scoring.goals.scorer import Scores, ScoringInputs
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.scoring import Scorer
from fdaudit.spec.schema import load_spec
from fdaudit.storage.cache import DIRECTORY
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.testing.specs import small_spec

from ..helpers.run_cases import known
from ..helpers.text_cases import write_texts

Kind = tuple[Case, Callable[[Case, str], Guess]]
"""A case, and a guess about one of its clients."""
CELLS = {
    "server/one": (0, 1),
    "eavesdropper/another": (0, 1),
    "client/2/one": (0, 1),
    "client/0/one": (1,),
    "server+client/1/one": (0,),
}
"""Cells by id, with the clients that are their victims."""
BEHIND = 4
"""Records behind each client's message, whose number is the client's own plus one."""


# -- cases and guesses ----------------------------------------------------------------------------------------------


def _case(secrets: Secrets | None = None, **changes: Any) -> Case:
    spec = {"clients": 3, "dataset": {"name": "digits", "limit": 400}, "splits__proxy": 0.2}
    return simulated_case(load_spec(small_spec(**(spec | changes))), secrets or known(7))


@pytest.fixture(scope="module")
def images() -> Case:
    return _case()


@pytest.fixture(scope="module")
def rows() -> Case:
    return _case(dataset={"name": "made-table", "limit": 90})


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Case:
    table = write_texts(tmp_path_factory.mktemp("texts") / "a.csv", 90)
    model = {"name": "transformer", "params": {"width": 8}}
    return _case(dataset={"name": f"text:{table}", "length": 10}, model=model)


def _behind(case: Case, client: str) -> torch.Tensor:
    return case.records(client)[0][:BEHIND]


def _membership(case: Case, client: str) -> Membership:
    n = len(Truth(case, Vault(Path())).challenge(client)[1])
    scores = np.random.default_rng(case.clients.index(client)).random(n)
    return Membership(target=client, scores=torch.from_numpy(scores))


def _class_images(case: Case, client: str) -> Reconstruction:
    x, y = case.auxiliary
    chosen = [int((y == label).nonzero()[0]) for label in range(4)]
    return Reconstruction(target=client, messages=(), images=x[chosen], labels=y[chosen])


def _batch(case: Case, client: str) -> Reconstruction:
    guess = _behind(case, client) * 0.9
    return Reconstruction(target=client, messages=(case.clients.index(client) + 1,), images=guess)


def _shares(case: Case, client: str) -> LabelDistribution:
    C = case.dataset.classes
    return LabelDistribution(target=client, distribution=torch.full((C,), 1 / C, dtype=torch.float64))


def _rows(case: Case, client: str) -> RowReconstruction:
    guess = _behind(case, client).clone()
    guess[BEHIND // 2 :] = case.auxiliary[0][: BEHIND // 2]
    return RowReconstruction(target=client, messages=(case.clients.index(client) + 1,), rows=guess)


def _texts(case: Case, client: str) -> TextReconstruction:
    seq, guess = case.clients.index(client) + 1, _behind(case, client)[: BEHIND - 1]
    words = guess.unique()
    return TextReconstruction(target=client, messages=(seq,), words=words[words > 1], texts=guess)


KINDS = {
    "membership": ("images", _membership),
    "classes": ("images", _class_images),
    "messages": ("images", _batch),
    "shares": ("images", _shares),
    "rows": ("rows", _rows),
    "texts": ("texts", _texts),
}


DEAR = {"classes", "rows", "texts"}


@pytest.fixture(params=[pytest.param(k, marks=[pytest.mark.thorough] if k in DEAR else []) for k in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    case, guess = KINDS[request.param]
    return request.getfixturevalue(case), guess


def _scorer(case: Case, folder: Path) -> Scorer:
    (folder / "vault").mkdir(parents=True, exist_ok=True)
    vault = Vault(folder / "vault")
    behind = {str(k + 1): torch.arange(BEHIND) for k in range(len(case.clients))}
    vault.save("truth/000000", behind)
    answering: Any = None  # copies of models alone need it
    return Scorer(ScoringInputs(truth=Truth(case, vault), run=folder, answering=answering, encode=None))


def _scored(scorer: Scorer, kind: Kind, cell: str) -> Scores:
    case, guess = kind
    return scorer.score(cell, [guess(case, case.clients[k]) for k in CELLS[cell]])


def _figures(scores: Scores) -> tuple[Any, ...]:
    """The figures alone: pictures lie in the folder of their cell."""
    whole, targets = scores
    return (whole, *((target.target, target.figures, target.roc) for target in targets))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """The scores that are computed, and not remembered: each measurement with its victims."""
    seen = list[tuple[str, tuple[str, ...]]]()
    real = EvidenceScores.draws

    def counted(self: EvidenceScores, what: str, guesses: Sequence[Guess]) -> np.random.Generator:
        seen.append((what, tuple(guess.target for guess in guesses)))
        return real(self, what, guesses)

    monkeypatch.setattr(EvidenceScores, "draws", counted)
    return seen


# -- the same evidence ----------------------------------------------------------------------------------------------


def test_equal_guesses_have_equal_figures_in_every_cell(kind: Kind, tmp_path: Path) -> None:
    """Each cell is scored by a scorer of its own, so nothing is remembered."""
    cells = ("server/one", "eavesdropper/another")
    one, another = (_figures(_scored(_scorer(kind[0], tmp_path / c), kind, c)) for c in cells)
    assert any(figure.low is not None for figure in one[0])
    assert one == another


def test_remembered_scores_are_those_that_scoring_would_return(kind: Kind, tmp_path: Path) -> None:
    """In cells of other victims, and of adversaries that hold records, too."""
    remembering = _scorer(kind[0], tmp_path / "run")
    _scored(remembering, kind, "eavesdropper/another")
    for cell in CELLS.keys() - {"eavesdropper/another"}:
        fresh = _scorer(kind[0], tmp_path / "fresh")
        assert _figures(_scored(remembering, kind, cell)) == _figures(_scored(fresh, kind, cell))


@pytest.mark.parametrize(
    ("kind", "what", "pooled", "alone"),
    [
        ("membership", "membership", 1, 2),
        pytest.param("classes", "reconstruction", 1, 2, marks=pytest.mark.thorough),
        # a part of the victims has no p-value, and each victim is all of them in one cell
        pytest.param("classes", "evaluation", 1, 4, marks=pytest.mark.thorough),
        ("messages", "reconstruction", 1, 2),
        # galleries hold no record of the adversary's own clients
        ("messages", "identification", 2, 2),
        ("messages", "distances", 1, 2),
        # a victim's bystanders are those of all victims
        pytest.param("rows", "rows", 1, 4, marks=pytest.mark.thorough),
        pytest.param("texts", "texts", 1, 4, marks=pytest.mark.thorough),
    ],
    indirect=["kind"],
)
def test_evidence_is_scored_once(
    kind: Kind, what: str, pooled: int, alone: int, computed: list[Any], tmp_path: Path
) -> None:
    scorer = _scorer(kind[0], tmp_path)
    for cell in CELLS:
        _scored(scorer, kind, cell)
    victims = [len(targets) for name, targets in computed if name == what]
    assert (victims.count(2), victims.count(1)) == (pooled, alone)


def test_the_least_recently_used_score_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdaudit.scoring.evidence._MOST_KEPT", 2)
    scores, made = EvidenceScores(0), list[str]()

    def score(name: str) -> float:
        return scores.once("x", [Guess(target=name)], lambda draws: made.append(name) or draws.random())

    first = score("a")
    for name in ("b", "a", "c", "a", "b"):
        score(name)
    assert made == ["a", "b", "c", "b"]
    assert score("a") == first


# -- draws ----------------------------------------------------------------------------------------------------------


def test_draws_belong_to_the_seed_the_measurement_and_the_victims() -> None:
    names = [
        (1, "auc", ["client/0"]),
        (2, "auc", ["client/0"]),
        (1, "psnr", ["client/0"]),
        (1, "auc", ["client/1"]),
        (1, "auc", ["client/0", "client/1"]),
        (1, "auc", []),
    ]
    values = [draws_of(*name).random() for name in names]
    assert len(set(values)) == len(names)
    assert values[0] == np.random.default_rng(child_seed(1, "score", "auc", "client/0")).random()


def test_measurements_of_one_cell_have_draws_of_their_own(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = list[tuple[Any, ...]]()
    real = np.random.default_rng

    def named(seed: int, *path: Any) -> np.random.Generator:
        names.append(path)
        return real(child_seed(seed, *path))

    monkeypatch.setattr("fdaudit.scoring.evidence.child_numpy", named)
    _scored(_scorer(kind[0], tmp_path), kind, "server/one")
    assert names
    assert len(set(names)) == len(names)
    assert all(path[0] == "score" and set(path[2:]) <= {"client/0", "client/1"} for path in names)


def test_draws_do_not_follow_from_what_an_attack_answers(
    images: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An attack that changes its guess to get other draws gets the same ones."""
    drawn = list[tuple[Any, ...]]()

    def seen(seed: int, *path: Any) -> np.random.Generator:
        drawn.append(path)
        return np.random.default_rng(child_seed(seed, *path))

    monkeypatch.setattr("fdaudit.scoring.evidence.child_numpy", seen)
    scorer, guess = _scorer(images, tmp_path), _membership(images, "client/0")
    scorer.score("server/one", [guess])
    first = drawn[:]
    assert ("score", "membership", "client/0") in first
    drawn.clear()
    scorer.score("server/two", [replace(guess, scores=guess.scores + 1e-9, note="another")])
    assert drawn == first


# -- other evidence -------------------------------------------------------------------------------------------------


def _filled(guess: type[Guess]) -> dict[str, Any]:
    """A value for each field of a class of guesses."""
    values: dict[str, Any] = {
        "target": "client/0",
        "messages": (1, 2),
        "parameters": {"a": torch.zeros(2), "b": torch.ones(2)},
        "note": "",
        "rehearsed": 0.5,
        "objective": 0.5,
        "evaluations": 3,
    }
    return {field.name: values.get(field.name, torch.zeros(2, 3)) for field in fields(guess)}


def _changed(value: Any) -> list[Any]:
    """Values that a hostile attack may hope to be taken for this one."""
    if isinstance(value, torch.Tensor):
        first = value.flatten()
        return [
            None,
            value + 1e-7,
            -value,
            value.T,
            value.reshape(-1),
            value[None],
            value[:0],
            value.double(),
            value.view(torch.int32),
            value * float("nan"),
            torch.cat([first, first]),
        ]
    if isinstance(value, dict):
        swapped = dict(zip(value, reversed(value.values()), strict=True))
        renamed = {"a": value["a"], "b/c": value["b"]}
        return [swapped, renamed, {"a": value["a"]}, {"a": torch.cat([value["a"], value["b"]])}]
    if isinstance(value, tuple):
        return [(), (2, 1), (1,), (1, 2, 2), (12,)]
    if isinstance(value, float):
        return [None, 0.0, -0.0, float("nan"), float("inf"), 0.5000000000000001]
    return [3.0, "client/01", "client/0\x00", 4] if value != "" else ["\x00", '"}', " "]


@pytest.mark.parametrize("goal", GOALS)
def test_every_field_of_a_guess_is_evidence(goal: str) -> None:
    guess = GOALS[goal].guess
    values = _filled(guess)
    digests = [evidence_of([guess(**values)])]
    for name, value in values.items():
        digests += [evidence_of([guess(**values | {name: other})]) for other in _changed(value)]
    assert len(set(digests)) == len(digests)
    copied = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    assert evidence_of([guess(**copied)]) == digests[0]


def test_a_tensor_cannot_move_from_one_part_of_the_evidence_to_another() -> None:
    a, b = torch.zeros(2), torch.ones(2)

    def copy(target: str, **parameters: torch.Tensor) -> Extraction:
        return Extraction(target=target, parameters=parameters)

    digests = [
        evidence_of(value)
        for value in (
            [copy("client/0", a=a, b=b), copy("client/1")],
            [copy("client/0", a=a), copy("client/1", b=b)],
            [copy("client/0"), copy("client/1", a=a, b=b)],
            [copy("client/1", a=a, b=b), copy("client/0")],
            [copy("client/0", a=a, b=b)],
            [copy("client/0", a=b, b=a), copy("client/1")],
            [[a, b], []],
            [[a], [b]],
            [a, b],
            [{"tensor": 1}, {"tensor": 2}],
            ["0.5"],
            [0.5],
            [{"float": 0.5}],
        )
    ]
    assert len(set(digests)) == len(digests)


@pytest.mark.thorough
def test_what_the_adversary_holds_is_evidence_where_it_counts(images: Case, tmp_path: Path) -> None:
    """An attack that lacks classes is compared with another prior than one that holds records of all."""
    (x, y), lacked = images.auxiliary, (0, 1)
    guess = _class_images(images, "client/0")
    guess = replace(guess, images=guess.images[:2], labels=guess.labels[:2])
    assumed = [
        Assumption((x, y)),
        Assumption((x, y), lacked),
        Assumption((1 - x, y)),
        Assumption(None, lacked),
        Assumption((x[y > 1], y[y > 1]), lacked),
    ]
    remembering = _scorer(images, tmp_path / "run")
    for one in assumed:
        fresh = _scorer(images, tmp_path / "fresh")
        ours, theirs = (s.score("server/one", [guess], [one]) for s in (remembering, fresh))
        assert _figures(ours) == _figures(theirs)


def test_a_scorer_remembers_nothing_of_another_truth(tmp_path: Path) -> None:
    secrets = (known(7), Secrets(7, bytes(32)))
    cases = [_case(secret) for secret in secrets]
    guesses = [_membership(cases[0], client) for client in cases[0].clients[:2]]
    figures = [_scorer(case, tmp_path / str(k)).score("server/one", guesses) for k, case in enumerate(cases)]
    assert _figures(figures[0]) != _figures(figures[1])


def test_what_is_scored_anew_does_not_depend_on_the_truth(computed: list[Any], tmp_path: Path) -> None:
    """So an attack that could time the auditor would learn nothing of who is a member."""
    patterns = []
    for secret in (known(7), Secrets(7, bytes(32))):
        case = _case(secret)
        scorer = _scorer(case, tmp_path / str(len(patterns)))
        for cell in CELLS:
            _scored(scorer, (case, _membership), cell)
        patterns.append(computed[:])
        computed.clear()
    assert patterns[0] == patterns[1]


def test_no_score_is_in_the_cache_that_attacks_may_write(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (shared := tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv(DIRECTORY, str(shared))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    _scored(_scorer(kind[0], tmp_path / "run"), kind, "server/one")
    assert list(shared.iterdir()) == []
