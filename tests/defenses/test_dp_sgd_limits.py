"""DP-SGD inside protocols: without clip, noise and secret draws it is plain training; with them, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from fdaudit.defenses import REGISTRY as DEFENSES
from torch.nn import functional as F

from fdaudit.config import validate
from fdaudit.events import NoGuarantee
from fdaudit.federation.protocol import PartyData
from fdaudit.rng import SecretStream, child
from fdaudit.storage.files import decode
from fdaudit.testing.federation import SIZES, initial, network, records
from fdaudit.testing.running import SECRET
from fdaudit.transcript.messages import DATA, role

from ..helpers.protocol_cases import SMALL, run
from .dp_sgd_run_cases import SETTINGS, declares_release, defended, releases, training


class Same:
    """A rule without clip or noise that draws what the plain training draws."""

    def __init__(self, expected: int, draw: Any) -> None:
        cls = DEFENSES.load("dp-sgd")
        config = validate(cls.Config, {"clip": 1e9, "noise_multiplier": 1.0, "sample_rate": 1.0})
        self._rule = cls(config.model_copy(update={"noise_multiplier": 0.0}), expected)
        self._draw = draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def draw(self, records: int, noise: Any) -> torch.Tensor:
        drawn: torch.Tensor = self._draw(records)
        return drawn

    def event(self, steps: int) -> NoGuarantee:
        return NoGuarantee(reason="a test: nothing is clipped and no noise is added")


def close(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor], rtol: float = 1e-3) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_without_noise_clip_and_sampling_dafkd_trains_classifier_and_discriminator_as_plainly(
    share, tmp_path
):
    one = {"client/0": records()["client/2"]}
    n = len(one["client/0"])
    params = {
        "batch_size": n,
        "local_steps": 3,
        "lr": 0.3,
        "momentum": 0.5,
        "adversarial": 0.7,
        "share_extractor": share,
    }
    plain = run(tmp_path / "a", "dafkd", params, clients=one, rounds=1)
    guarded = {"model": Same(n, lambda records: torch.arange(records))}
    other = run(tmp_path / "b", "dafkd", params, clients=one, rounds=1, training=guarded)
    for kind in ("model_parameters", "discriminator_parameters"):
        two = [
            next(r.tensors(m) for m in r.messages if (m.kind, m.sender) == (kind, "client/0"))
            for r in (plain, other)
        ]
        close(*two)
    assert other.rounds[0].losses["client/0"] == pytest.approx(plain.rounds[0].losses["client/0"], rel=1e-4)


def test_under_dp_sgd_dafkds_generator_asks_for_all_classes_alike_and_plainly_for_its_own(tmp_path):
    """A client of one class: plainly its generator's step depends on that, under DP-SGD it does not."""
    asked = {}
    for name, rules in (("plain", None), ("guarded", training("dafkd"))):
        one = {"client/0": PartyData(records()["client/2"].x, torch.zeros(12, dtype=torch.int64))}
        ran = run(tmp_path / name, "dafkd", {"local_steps": 1}, clients=one, rounds=1, training=rules)
        client, seen = ran.protocol._clients["client/0"], []
        client._asked = lambda y, noise, seen=seen, f=client._asked: (seen.append(y), f(y, noise))[1]
        client._generator_loss(64, torch.Generator().manual_seed(0), own_classes=rules is None)
        asked[name] = set(torch.cat(seen).tolist())
    assert asked == {"plain": {0}, "guarded": {0, 1, 2}}


def test_without_noise_clip_and_secret_draws_fediods_discriminators_learn_as_plainly(tmp_path):
    """The rule draws what the run's seed draws for the plain step; seven steps, one after another."""
    one, params = {"client/0": records()["client/2"]}, {"weights": "uniform", "steps_per_round": 7}
    plain = run(tmp_path / "a", "fediod", params, clients=one, rounds=2)
    steps = iter(range(7))

    def draw(records: int) -> torch.Tensor:
        return torch.randint(records, (4,), generator=child(5, "fediod", "real", next(steps), "client/0"))

    other = run(
        tmp_path / "b", "fediod", params, clients=one, rounds=2, training={"discriminator": Same(4, draw)}
    )
    a, b = (
        {n: t for n, t in r.protocol.state.items() if n.startswith("client/0/D/w/")} for r in (plain, other)
    )
    assert a
    close(a, b)
    assert other.rounds[1].losses["client/0"] == pytest.approx(plain.rounds[1].losses["client/0"], rel=1e-3)


def test_of_fediod_one_training_may_be_defended_without_the_other(tmp_path):
    uniform = {"weights": "uniform", "shares": "uniform"}
    for only, gan, narrow in (
        ("model", 1.0, {"logits"}),
        ("model", 0.0, {"logits", "sample_gradients"}),
        ("discriminator", 1.0, set()),
    ):
        params = {**uniform, "gan": gan}
        rules = training("fediod", params, only=only)
        ran = run(tmp_path / f"{only}-{gan}", "fediod", params, training=rules)
        assert {m.defenses[0]["of"] for m in releases(ran)} == {only}
        assert {
            m.kind for m in ran.messages if role(m.sender) == "client" and declares_release(ran, m)
        } == narrow


def test_selective_fd_without_a_selector_declares_the_release(tmp_path):
    ran = defended(tmp_path / "a", "selective-fd", {"selector": "none"})
    answers = [m for m in ran.messages if m.kind == "hard_labels"]
    assert answers
    assert all(declares_release(ran, m) for m in answers)


# -- FedAvg ---------------------------------------------------------------------------------------------------------


def test_an_upload_is_what_a_reader_who_knows_the_secret_works_out_by_hand(tmp_path):
    """Poisson draw, gradients one by one, clip, sum, noise and division, from Abadi et al. 2016, Algorithm 1."""
    params = {"upload": "gradient", "weighting": "uniform"}
    ran = defended(tmp_path / "a", "fedavg", params, rounds=1)
    (made,) = [m for m in releases(ran) if m.sender == "client/2"]
    (sent,) = [m for m in ran.messages if m.sender == "client/2" and m.kind == "gradient"]
    assert (made.inputs, sent.inputs) == ((DATA, 0), (made.seq,))
    coins, data = SecretStream(SECRET, "training", "model", 1, "client/2"), records()["client/2"]
    drawn = [i for i, u in enumerate(coins.uniform(len(data))) if u < SETTINGS["sample_rate"]]
    module = network().build(torch.Generator().manual_seed(0))
    module.load_state_dict(initial())
    total = {n: torch.zeros(p.shape, dtype=torch.float64) for n, p in module.named_parameters()}
    for i in drawn:
        module.zero_grad()
        F.cross_entropy(module(data.x[i : i + 1]), data.y[i : i + 1]).backward()
        g = {n: p.grad.double() for n, p in module.named_parameters()}
        norm = float(torch.stack([t.square().sum() for t in g.values()]).sum().sqrt())
        total = {n: t + g[n] / max(1.0, norm / SETTINGS["clip"]) for n, t in total.items()}
    for n in sorted(total):
        noise = (
            torch.as_tensor(coins.normal(*total[n].shape)) * SETTINGS["noise_multiplier"] * SETTINGS["clip"]
        )
        expected = ((total[n] + noise) / SMALL["batch_size"]).float()
        torch.testing.assert_close(ran.tensors(sent)[n], expected, rtol=1e-4, atol=1e-6)
    assert ran.rounds[0].batches[sent.seq].tolist() == drawn


def test_public_counts_weigh_as_the_servers_do_and_so_do_equal_constants(tmp_path):
    sent = run(tmp_path / "a", "fedavg", {"weighting": "samples"})
    public = run(tmp_path / "b", "fedavg", {"weighting": "public"})
    constant = run(tmp_path / "c", "fedavg", {"weighting": "public", "weights": SIZES})
    assert [m.kind for m in public.messages] == [m.kind for m in sent.messages]
    assert "sample_count" not in {m.kind for m in constant.messages}
    for n, t in sent.protocol.released().items():
        assert torch.equal(t, public.protocol.released()[n])
        torch.testing.assert_close(t, constant.protocol.released()[n])


def test_epochs_become_a_public_number_of_steps(tmp_path):
    ran = defended(tmp_path / "a", "fedavg", {"local_epochs": 3}, rounds=1)
    assert {m.event.count for m in releases(ran)} == {6}  # 3 epochs at q = 1/2, whatever a client's records


def test_the_basis_of_a_model_outlives_its_round(tmp_path):
    ran = defended(tmp_path / "a", "fedmd", {"warm_up_steps": 2})
    state = decode(ran.states[-1])
    last = [m.seq for m in releases(ran) if m.sender == "client/1"][-1]
    assert state["client/1/basis"].tolist() == [last]
    consensus = [m.seq for m in ran.messages if m.kind == "ensemble_labels"]
    assert ran.messages[last].inputs[0] == DATA
    assert consensus[-1] in ran.messages[last].inputs, "a revisit goes on from the digested consensus"
