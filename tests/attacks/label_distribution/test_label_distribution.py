"""Attacks on class shares: right where the record gives them away, refused with a reason where it does not."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fdaudit.attacks.gradient_inversion import mixtures
from fdaudit.attacks.gradient_inversion.mixtures import mixture_of
from fdaudit.attacks.label_distribution._guesses import uniform
from fdaudit.attacks.label_distribution._shadows import ShareModel, draw_shadow
from fdaudit.attacks.label_distribution.declined import accepted_samples, read_declined
from hypothesis import given, settings
from hypothesis import strategies as st

import fdaudit
from fdaudit import attacks
from fdaudit.audit.run import Run
from fdaudit.evaluation.controls import controls
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.metrics import kl_divergence
from fdaudit.planning.simulated import simulated_case
from fdaudit.registry import AttackCard, Registry
from fdaudit.result import Cell, Target, check_gates
from fdaudit.scoring.goals.scorer import CheckedTask
from fdaudit.scoring.guesses import check_guesses
from fdaudit.spec.schema import load_spec
from fdaudit.types import Applicability, Figure

from ...helpers.doubles import SEED, NoSettings
from ...helpers.results import cell_of, values_of
from ...helpers.run_cases import known, three_clients

pytestmark = pytest.mark.thorough

NAMES = ("label-answers", "label-counts", "label-declined", "label-updates")


def spec(protocol: str, params: dict[str, Any], *names: str, **changes: Any) -> dict[str, Any]:
    """Ten clients on digits, uneven by Dirichlet 1.0, all of them victims."""
    own = {
        "seed": SEED,
        "clients": 10,
        "victims": 10,
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "model": {"name": "mlp", "params": {"widths": [64]}},
        "protocol": {"name": protocol, "params": params},
        "adversaries": ["server"],
        "attacks": [{"name": n} for n in names],
    }
    return three_clients(**own | changes)


def figures(run: Run, cell: str) -> dict[str, float]:
    found = cell_of(run, cell)
    assert found["status"] == "run", found["reason"]
    return values_of(found)


def uniform_kl(run: Run) -> float:
    """Mean KL of the uniform guess, from the clients' own records."""
    case, values = run.case, []
    for client in case.clients:
        counts = torch.bincount(case.records(client)[1], minlength=case.dataset.classes).double()
        values.append(kl_divergence(counts / counts.sum(), uniform(len(counts))))
    return sum(values) / len(values)


# -- through a run ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fedkd(tmp_path_factory):
    out = tmp_path_factory.mktemp("fedkd") / "run"
    quick = {"local_epochs": 2, "distill_rounds": 1, "distill_steps": 1}
    wanted = spec("fedkd", quick, "label-counts", "label-declined", "label-updates")
    return fdaudit.run(wanted | {"adversaries": ["server", "aggregator", "eavesdropper"]}, out)


@pytest.mark.thorough
def test_at_fedmd_the_mean_divergence_is_at_most_a_third_of_the_uniform_guess(tmp_path):
    run = fdaudit.run(spec("fedmd", {"rounds": 3}, "label-answers"), tmp_path / "run")
    found = figures(run, "server/label-answers")
    assert found["label_kl_mean"] <= uniform_kl(run) / 3
    assert found["label_tv_mean"] <= found["label_tv_prior_mean"] / 2


@pytest.mark.thorough
def test_fedkds_counts_give_the_shares_away_exactly(fedkd):
    for adversary in ("aggregator", "eavesdropper"):
        found = figures(fedkd, f"{adversary}/label-counts")
        assert found["label_kl_mean"] == found["label_tv_mean"] == found["label_chebyshev_mean"] == 0
        assert found["label_kl_prior_mean"] > 0.1


def test_the_figures_stand_beside_the_worst_client_and_the_prior(fedkd):
    found = figures(fedkd, "aggregator/label-counts")
    for name in ("label_kl", "label_tv", "label_chebyshev"):
        assert {f"{name}_mean", f"{name}_worst", f"{name}_prior_mean"} <= set(found)
    cell = cell_of(fedkd, "aggregator/label-counts")
    assert [t["target"] for t in cell["targets"]] == [f"client/{k}" for k in range(10)]
    for target in cell["targets"]:
        assert target["shares"]["guess"] == target["shares"]["truth"]
        assert sum(target["shares"]["prior"]) == pytest.approx(1)


def test_what_is_not_in_view_is_a_reason(fedkd):
    reasons = {c["id"]: c["reason"] for c in fedkd.result.plain()["cells"] if c["status"] == "not-applicable"}
    assert "class_counts or private_labels" in reasons["server/label-counts"]
    assert "asked about" in reasons["aggregator/label-declined"]
    assert "model_update or model_parameters" in reasons["aggregator/label-updates"]


def test_the_page_shows_true_and_guessed_shares(fedkd):
    page = fdaudit.report(fedkd).read_text("utf-8")
    assert "shares of client/0" in page
    assert "6 of 10" in page


def test_withheld_counts_leave_nothing_to_read(tmp_path):
    quick = {"local_epochs": 1, "distill_rounds": 1, "distill_steps": 1, "weights": "uniform"}
    wanted = spec("fedkd", quick, "label-counts", adversaries=["eavesdropper"], clients=3, victims=3)
    cell = cell_of(fdaudit.run(wanted, tmp_path / "run"), "label-counts")
    assert cell["status"] == "not-applicable"
    assert "class_counts or private_labels" in cell["reason"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "params",
    [
        {"upload": "gradient"},
        {"upload": "model_update", "local_epochs": 2},
        {"upload": "model_parameters", "momentum": 0.9},
    ],
    ids=lambda p: p["upload"],
)
def test_uploads_of_fedavg_tell_the_shares_whatever_their_form(tmp_path, params):
    run = fdaudit.run(spec("fedavg", {"rounds": 3, **params}, "label-updates"), tmp_path / "run")
    found = figures(run, "server/label-updates")
    assert found["label_kl_mean"] <= uniform_kl(run) / 10


@pytest.mark.thorough
def test_what_selective_fd_declines_tells_more_than_the_prior(tmp_path):
    wanted = spec("selective-fd", {"rounds": 1, "local_steps": 1}, "label-declined")
    run = fdaudit.run(wanted, tmp_path / "run")
    found = figures(run, "server/label-declined")
    assert found["label_kl_mean"] <= 0.9 * uniform_kl(run)


def test_a_digest_cannot_be_read(tmp_path):
    wanted = spec("fedavg", {"rounds": 1}, "label-updates", record="digest", clients=2, victims=1)
    cell = cell_of(fdaudit.run(wanted, tmp_path / "run"), "label-updates")
    assert "digests" in cell["reason"]


# -- the parts ----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 12))
def test_a_mixture_of_class_gradients_is_taken_apart_up_to_its_scale(seed, classes):
    rng = torch.Generator().manual_seed(seed)
    columns = [torch.randn(classes, classes, 7, generator=rng).double() for _ in range(2)]
    pi = torch.rand(classes, generator=rng).double() * (torch.rand(classes, generator=rng) < 0.7)
    pi = pi / pi.sum() if pi.sum() else uniform(classes)
    scale = float(torch.rand((), generator=rng)) * 10 + 0.1
    seen = [scale * torch.einsum("k,kcf->cf", pi, G) for G in columns]
    assert torch.allclose(mixture_of(zip(columns, seen, strict=True), classes), pi, atol=1e-4)


def test_blocks_of_a_layer_give_the_shares_of_the_whole_layer(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 5))
    x, y = torch.rand(40, 1, 6, 6, generator=generator), torch.arange(40) % 5
    start = dict(module.state_dict())
    end = {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in start.items()}
    passes = [mixtures.LastLayer.of(module, at, x, y, 5) for at in (start, end)]
    columns = [one.gradients() for one in passes]
    sent = torch.einsum("k,kcf->cf", torch.tensor([0.5, 0.2, 0.0, 0.2, 0.1]).double(), sum(columns) / 2)
    whole = mixture_of([(sum(columns) / 2, sent)], 5)
    assert torch.equal(mixture_of(mixtures.halfway(*passes, sent), 5), whole)
    monkeypatch.setattr(mixtures, "_BLOCK", 25 * 7)
    parts = list(mixtures.halfway(*passes, sent))
    assert max(G.numel() for G, _ in parts) <= 25 * 7
    assert torch.equal(torch.cat([g for _, g in parts], 1), sent)
    assert torch.allclose(mixture_of(iter(parts), 5), whole, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_shadow_clients_hold_each_record_once_and_know_their_shares(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (60,), generator=generator)
    (x, drawn), shares = draw_shadow(torch.arange(60.0)[:, None], y, classes, generator)
    rows = x[:, 0].long()
    assert len(rows.unique()) == len(rows) > 0
    assert (y[rows] == drawn).all()
    assert torch.allclose(torch.bincount(drawn, minlength=classes).double() / len(drawn), shares)


def test_a_share_model_learns_a_log_linear_law_and_treats_classes_alike():
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(40, 5, 2, generator=generator)
    shares = (features.double() @ torch.tensor([1.5, 0.0]).double()).softmax(1)
    model = ShareModel.fit(features, shares, 1e-9)
    assert torch.allclose(model(features), shares, atol=1e-3)
    turned = features[:, [4, 3, 2, 1, 0]]
    assert torch.allclose(model(turned), model(features)[:, [4, 3, 2, 1, 0]])
    assert torch.allclose(model(torch.randn(3, 5, 2)).sum(1), torch.ones(3).double())


class _Sent:
    """A message and its tensors, as a view hands them out."""

    def __init__(self, seq, kind, sender, receivers, **tensors):
        self.seq, self.kind, self.sender, self.receivers, self.round = seq, kind, sender, receivers, 0
        self.payload, self.given = {}, tensors


class _View:
    def __init__(self, *messages):
        self.messages = messages

    def select(self, kind=None, round=None):
        return tuple(m for m in self.messages if m.kind == kind)

    def tensors(self, message):
        return message.given


def test_a_declined_sample_and_a_vote_for_nobody_count_alike():
    asked = _Sent(0, "proxy_indices", "server", ("client/0",), index=torch.tensor([0, 1, 2]))
    left_out = _Sent(
        1, "soft_labels", "client/0", ("server",), index=torch.tensor([0, 2]), values=torch.ones(2, 2) / 2
    )
    votes = _Sent(
        1,
        "hard_labels",
        "client/0",
        ("server",),
        index=torch.tensor([0, 1, 2]),
        values=torch.tensor([1, -1, 0]),
    )
    for answer in (left_out, votes):
        seen, taken = accepted_samples(_View(asked, answer), "client/0", 4)
        assert seen.tolist() == [1, 1, 1, 0]
        assert taken.tolist() == [1, 0, 1, 0]
    classes_of = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]]).double()
    features = read_declined(_View(asked, left_out), "client/0", classes_of)
    assert features[0, 0] > features[1, 0]
    assert read_declined(_View(asked), "client/0", classes_of) is None


# -- guesses and gates --------------------------------------------------------------------------------------------

UNFIT = {
    "nine classes": (torch.ones(9) / 9, "each of 10 classes"),
    "no number": (torch.full((10,), float("nan")), "each of 10 classes"),
    "negative": (torch.tensor([-0.1, 1.1, *[0.0] * 8]), "negative or do not sum to 1"),
    "two in all": (torch.ones(10) / 5, "negative or do not sum to 1"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_shares_that_are_no_distribution_are_refused(case):
    shares, says = UNFIT[case]
    guess = LabelDistribution(target="client/0", distribution=shares)
    with pytest.raises(ValueError, match=says):
        check_guesses([guess], CheckedTask(victims=["client/0"], candidates={}, view=_View(), classes=10))


@pytest.mark.parametrize("answered", [[], ["client/0", "client/0"], ["client/0", "client/2"]])
def test_every_victim_is_answered_once(answered):
    made = [LabelDistribution(target=k, distribution=torch.ones(2) / 2) for k in answered or ["client/1"]]
    with pytest.raises(ValueError, match="the victims are"):
        check_guesses(
            made, CheckedTask(victims=["client/0", "client/1"], candidates={}, view=_View(), classes=2)
        )


@pytest.mark.parametrize(("threshold", "passed"), [(0.05, True), (0.1, True), (0.2, False)])
def test_a_gate_on_shares_is_broken_by_a_guess_that_comes_too_near(threshold, passed):
    cell = Cell(
        protocol="fedavg",
        adversary="server",
        attack="label-counts",
        goal="label-distribution",
        status="run",
        targets=tuple(
            Target(target=f"client/{k}", figures=(Figure(name="label_tv", value=value),))
            for k, value in enumerate((0.1, 0.4))
        ),
    )
    (gate,) = check_gates({"label_tv": threshold}, [cell])
    assert (gate.value, gate.passed, gate.at_least) == (0.1, passed, True)
    (unmeasured,) = check_gates({"label_tv": threshold}, [])
    assert not unmeasured.passed


# -- controls -----------------------------------------------------------------------------------------------------


class Constant:
    """Says the same of everybody: nothing that it read off a message."""

    card = AttackCard(
        name="constant",
        goal="label-distribution",
        needs=(),
        assumes=(),
        oracle=None,
        source="a test",
        control={"on": "labels"},
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[NoSettings]] = NoSettings

    def __init__(self, config):
        self.config = config

    def applicable(self, view, knowledge, task):
        return Applicability(True)

    def run(self, view, knowledge, task, generator):
        return tuple(LabelDistribution(target=k, distribution=uniform(10)) for k in task.targets)


def _tried(monkeypatch, name, protocol, params):
    monkeypatch.setattr(
        attacks,
        "REGISTRY",
        Registry("fdaudit.attacks", {**attacks.REGISTRY._own, "constant": f"{__name__}:Constant"}),
    )
    case = simulated_case(load_spec(spec(protocol, params, name)), known(SEED))
    (attack,) = (a for a in case.attacks if a.name == name)
    return controls(attack, case)


@pytest.mark.usefixtures("attacks_here")
def test_an_attack_that_says_the_same_of_everybody_fails_its_positive_control(monkeypatch):
    tried = _tried(monkeypatch, "constant", "fedavg", {"rounds": 1, "local_steps": 1})
    assert not tried["positive"].passed


@pytest.mark.thorough
def test_what_counts_tell_is_not_true_of_another_client(monkeypatch):
    quick = {"local_epochs": 1, "distill_rounds": 1, "distill_steps": 1}
    tried = _tried(monkeypatch, "label-counts", "fedkd", quick)
    assert tried["positive"].passed
    assert tried["positive"].figures[0].value == 0
    assert tried["negative"].passed
    found, prior = (f.value for f in tried["negative"].figures)
    assert found > prior > 0


def test_a_control_without_what_the_attack_needs_says_so(monkeypatch):
    tried = _tried(monkeypatch, "label-counts", "fedavg", {"rounds": 1, "local_steps": 1})
    assert not tried["positive"].passed
    assert "no class_counts" in tried["positive"].figures[0].unavailable


def test_every_card_says_that_it_is_tried_on_skewed_clients():
    for name in NAMES:
        card = attacks.REGISTRY.describe(name)
        assert (card.goal, card.control["on"]) == ("label-distribution", "labels")
        assert set(card.profiles) == {"quick", "standard", "full"}


def test_no_global_draw():
    """The same generator, the same shadow."""
    y = torch.arange(40) % 4
    drawn = [draw_shadow(torch.zeros(40, 1), y, 4, torch.Generator().manual_seed(1))[1] for _ in range(2)]
    np.testing.assert_array_equal(*[d.numpy() for d in drawn])
