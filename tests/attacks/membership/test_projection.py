"""Which candidates' gradients uploads are made of: the regression alone, and the attack on rehearsed federations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.gradients import GradientMap
from fdaudit.attacks.gradient_inversion.second_order.tracing import Trace
from fdaudit.attacks.membership import projection
from fdaudit.attacks.membership._coins import against_its_pair
from fdaudit.attacks.membership.projection import UpdateProjection, UpdateProjectionConfig, projected
from sklearn.linear_model import BayesianRidge

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.types import Challenge

from ...helpers.defence_cases import defence
from .rehearsed_cases import NETWORK, Paired, mlp, rehearsed, stream

KNOWLEDGE = Knowledge(architecture=NETWORK, classes=4)


# -- the regression ---------------------------------------------------------------------------------------------


def inputs(
    gradients: torch.Tensor, sent: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    return (gradients @ gradients.T)[None], (gradients @ sent)[None], (sent @ sent)[None], len(sent)


def test_shares_of_an_exact_sum_are_found() -> None:
    gradients = torch.randn(12, 300, generator=stream(0), dtype=torch.float64)
    weights = (torch.rand(12, generator=stream(1)) < 0.5).double() / 8
    found = projected(*inputs(gradients, weights @ gradients))
    assert torch.allclose(found.share[0], weights, atol=1e-6)
    assert float(found.ridge) <= 1e-7


@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
def test_the_ridge_is_that_of_an_independent_evidence_maximiser(noise: float) -> None:
    gradients = torch.randn(30, 400, generator=stream(2), dtype=torch.float64)
    weights = torch.randn(30, generator=stream(3), dtype=torch.float64)
    sent = weights @ gradients + noise * torch.randn(400, generator=stream(4), dtype=torch.float64)
    found = projected(*inputs(gradients, sent))
    theirs = BayesianRidge(
        fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, max_iter=1000, tol=1e-9
    ).fit(gradients.T.numpy(), sent.numpy())
    ridge = theirs.lambda_ / theirs.alpha_ / float(gradients.square().sum(1).mean())
    assert abs(float(found.ridge.log10()) - float(torch.tensor(ridge).log10())) <= 0.26, (
        "half a step of the grid"
    )
    assert torch.allclose(found.share[0], torch.from_numpy(theirs.coef_), atol=0.05 * noise)
    deviation = torch.from_numpy(theirs.sigma_).diagonal().sqrt()
    assert torch.allclose(found.variance[0].sqrt(), deviation, rtol=0.15)


def test_noise_alone_is_explained_by_nobody() -> None:
    gradients = torch.randn(20, 500, generator=stream(5), dtype=torch.float64)
    found = projected(*inputs(gradients, 10 * torch.randn(500, generator=stream(6), dtype=torch.float64)))
    assert float(found.ridge) >= 1
    assert float((found.share.abs() / found.variance.sqrt()).max()) < 4


def test_gradients_that_coincide_or_vanish_share_what_they_explain() -> None:
    one = torch.randn(100, generator=stream(7), dtype=torch.float64)
    found = projected(*inputs(torch.stack([one, one, torch.zeros(100).double()]), one))
    assert torch.allclose(found.share[0], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), atol=1e-6)
    assert bool(found.variance.isfinite().all())


# -- pairs ------------------------------------------------------------------------------------------------------


def challenge(pair: list[int], design: Any = "matched-pairs") -> Challenge:
    n = len(pair)
    return Challenge(
        target="client/0",
        x=torch.zeros(n, 1, 6, 6),
        y=torch.zeros(n).long(),
        pair=torch.tensor(pair),
        design=design,
    )


def test_a_candidate_is_held_against_the_other_of_its_pair() -> None:
    scores = torch.tensor([1.0, 2.0, 5.0, 7.0])
    assert against_its_pair(scores, challenge([0, 1, 1, 0])).tolist() == [-6.0, -3.0, 3.0, 6.0]
    assert against_its_pair(scores, challenge([0, 1, 2, 3], "coin-flips")).tolist() == scores.tolist()


# -- the attack -------------------------------------------------------------------------------------------------


class Case(Paired):
    """24 pairs of noise images in any order, and who was trained on."""

    knowledge = KNOWLEDGE

    def __init__(self) -> None:
        draws = stream(8)
        x, y = torch.rand(48, 1, 6, 6, generator=draws), torch.randint(4, (48,), generator=draws)
        super().__init__(x, y, torch.randint(2, (24,), generator=draws).bool())
        order = torch.randperm(48, generator=draws)
        pair = torch.arange(24).repeat_interleave(2)[order]
        self.member = self.member[order]
        self.challenge = Challenge(target="client/0", x=x[order], y=y[order], pair=pair)

    def auc(self, view: View, **params: Any) -> tuple[float, float]:
        """AUC and its p-value."""
        return self.figure(self.guess(UpdateProjection(UpdateProjectionConfig(**params)), view))


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def seen(place: Path, held: Any, noise: float = 0, adversary: str = "server", **settings: Any) -> View:
    """An adversary's view of FedAvg with a client that holds these records, and two others."""
    draws = stream(9)

    def other() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(20, 1, 6, 6, generator=draws), torch.randint(4, (20,), generator=draws)

    params = {"rounds": 20, "batch_size": 8, "lr": 0.1, "local_steps": 1, **settings}
    kind = (settings.get("upload", "gradient"), "client")
    defenses = {kind: [defence("gaussian-noise", sigma=noise)]} if noise else {}
    data, public = [held, other(), other()], torch.zeros(0, 1, 6, 6)
    return rehearsed(
        place / "transcript", "fedavg", data, public, adversary=adversary, defenses=defenses, **params
    )


def others(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of nobody's."""
    draws = stream(seed)
    return torch.rand(24, 1, 6, 6, generator=draws), torch.randint(4, (24,), generator=draws)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"upload": "gradient"}, 0.99),
        ({"upload": "model_update"}, 0.99),
        ({"upload": "model_parameters"}, 0.99),
        ({"upload": "model_update", "local_steps": 4, "momentum": 0.5}, 0.95),
        ({"upload": "model_parameters", "local_steps": None, "local_epochs": 2}, 0.95),
        ({"upload": "gradient", "noise": 0.02}, 0.8),
    ],
    ids=["gradient", "update", "parameters", "local steps", "local epochs", "noise"],
)
def test_members_of_a_federation_are_told(
    settings: dict[str, Any], least: float, case: Case, tmp_path: Path
) -> None:
    found, _ = case.auc(seen(tmp_path, case.held, **settings))
    assert found >= least


def test_a_client_with_none_of_the_candidates_gives_nothing_away(case: Case, tmp_path: Path) -> None:
    _, p = case.auc(seen(tmp_path, others(10), upload="gradient"))
    assert p > 0.01


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"upload": "gradient"}, 0.9),
        ({"upload": "model_update", "local_epochs": 1, "local_steps": None}, 0.8),
    ],
    ids=["gradient", "local epochs"],
)
def test_another_client_tells_members_from_what_rounds_change_in_the_broadcast_model(
    settings: dict[str, Any], least: float, case: Case, tmp_path: Path
) -> None:
    view = seen(tmp_path, case.held, adversary="client/1", **settings)
    assert not view.select(sender="client/0")
    assert case.auc(view, rounds=20)[0] >= least


def test_own_records_explain_what_is_not_of_candidates(case: Case, tmp_path: Path) -> None:
    """A coalition that holds records like the victim's others tells its members better."""
    draws = stream(12)
    x, y = torch.rand(160, 1, 6, 6, generator=draws), torch.randint(4, (160,), generator=draws)
    held = torch.cat([case.held[0], x]), torch.cat([case.held[1], y])
    settings = {"local_epochs": 2, "local_steps": None, "rounds": 6}
    view = seen(tmp_path, held, upload="model_update", **settings)
    assert not view.own_data
    without, _ = case.auc(view)
    with_own, _ = case.auc(replace(view, own_data={"client/1": (x, y)}))
    assert with_own > without + 0.05


def test_broadcast_models_of_a_federation_without_the_candidates_give_nothing_away(
    case: Case, tmp_path: Path
) -> None:
    view = seen(tmp_path, others(11), adversary="client/1", upload="gradient")
    assert case.auc(view)[1] > 0.01


def test_a_model_that_no_round_changes_tells_nothing(case: Case, tmp_path: Path) -> None:
    view = seen(tmp_path, case.held, adversary="client/1", upload="gradient", lr=1e-30)
    assert case.auc(view)[0] == 0.5


def test_cosines_tell_less_but_something(case: Case, tmp_path: Path) -> None:
    view = seen(tmp_path, case.held, upload="gradient", batch_size=24)
    assert 0.6 < case.auc(view, score="cosine")[0] <= case.auc(view)[0]


def test_a_part_of_a_large_network_is_enough(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = seen(tmp_path, case.held, upload="gradient")
    monkeypatch.setattr("fdaudit.attacks.membership.projection._MOST_VALUES", 48 * 200)
    assert case.auc(view)[0] > 0.95


def test_adversaries_with_equal_uploads_explain_them_once(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is traced and tested once for all uploads; the scores are kept for who sees the same."""
    traces, explained = list[int](), list[int]()
    for made, owner, name in (
        (traces, Trace, "of"),
        (explained, UpdateProjection, "_explained"),
    ):
        real = getattr(owner, name)

        def counted(*args: Any, made: list[int] = made, real: Any = real) -> Any:
            made.append(1)
            return real(*args)

        monkeypatch.setattr(owner, name, counted)
    settings = {"upload": "gradient", "rounds": 7, "lr": 0.05}
    values = [
        case.auc(seen(tmp_path / str(n), case.held, adversary=name, **settings))
        for n, name in enumerate(("server", "eavesdropper"))
    ]
    assert values[0] == values[1]
    assert len(explained) == 1
    assert len(traces) == 1


def test_it_says_why_it_does_not_apply(case: Case, tmp_path: Path) -> None:
    view = seen(tmp_path, case.held, upload="gradient", rounds=1, adversary="world")
    attack, full = UpdateProjection(UpdateProjectionConfig()), case.task
    task = replace(full, challenges={})
    assert "no challenge" in attack.applicable(view, KNOWLEDGE, task).reason
    assert "architecture" in attack.applicable(view, Knowledge(), full).reason
    other = Knowledge(architecture=mlp(8))
    server = seen(tmp_path / "server", case.held, upload="gradient", rounds=1)
    assert "mlp (8,)" in attack.applicable(server, other, full).reason
    nobody = replace(task, challenges={"client/7": replace(case.challenge, target="client/7")})
    assert "client/7" in attack.applicable(view, KNOWLEDGE, nobody).reason


@pytest.mark.parametrize("some", [False, True])
def test_gradients_of_a_large_network_are_taken_a_few_at_a_time(
    some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = NETWORK.build(stream(5))
    tensors = {name: p.detach() for name, p in module.named_parameters()}
    upload = projection._ProjectedUpload(descent=tensors, models=(tensors,))
    count = sum(p.numel() for p in module.parameters())
    x, y = torch.rand(20, 1, 1, 6, 6, generator=stream(6)), torch.randint(4, (20, 1), generator=stream(7))
    looked_at = torch.arange(0, count, 3) if some else None
    simulate = GradientMap(module, tensors)
    together, _ = upload.on(simulate, x, y, looked_at)
    sizes = []
    whole_batch = GradientMap.__call__

    def few(self: GradientMap, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return whole_batch(self, x, y)

    monkeypatch.setattr(projection, "_MOST_AT_ONCE", 3 * count)
    monkeypatch.setattr(GradientMap, "__call__", few)
    apart, descent = upload.on(simulate, x, y, looked_at)
    assert max(sizes) == 3
    assert together.shape == apart.shape == (20, len(descent))
    assert torch.allclose(together, apart, atol=1e-6)
