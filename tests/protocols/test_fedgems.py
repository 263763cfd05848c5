"""FedGEMS: its selection against plain loops, what the server asks for, and who has the public labels."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.protocols import REGISTRY
from fdaudit.protocols.fedgems import selected
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import fdaudit
from fdaudit import attacks
from fdaudit.config import validate
from fdaudit.errors import ProtocolError
from fdaudit.handout.auxiliary import assumptions
from fdaudit.handout.auxiliary import known as known_to
from fdaudit.isolation.frames import Tensors
from fdaudit.isolation.schema import Trial, packed, unpacked
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import Spec
from fdaudit.testing.federation import public, public_labels, records
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.samples import sample_index
from fdaudit.transcript.wire import Outage
from fdaudit.types import AttackTask

from ..helpers.by_hand import equal, module_of, sent, tensors
from ..helpers.protocol_cases import configured, run
from ..helpers.refusals import refused
from ..helpers.run_cases import known

PLAIN = {"lr": 1.0, "local_steps": 12}


def by_hand(logits: Tensor, present: Tensor, y: int) -> list[float] | None:
    """Equations 3 to 5 for one sample, in loops."""
    right = [k for k in range(len(logits)) if present[k] and int(logits[k].argmax()) == y]
    if not right:
        return None
    confidence = []
    for k in right:
        p = [math.exp(float(v)) for v in logits[k]]
        p = [v / sum(p) for v in p]
        confidence.append(1 / -sum(v * math.log(v) for v in p))
    weights = [math.exp(c - max(confidence)) for c in confidence]
    return [
        sum(w / sum(weights) * float(logits[k][c]) for w, k in zip(weights, right, strict=True))
        for c in range(logits.shape[1])
    ]


def test_the_fused_logits_are_what_loops_over_clients_give() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 4, 3, generator=g, dtype=torch.float64)
    present, y = torch.rand(40, 4, generator=g) < 0.8, torch.randint(3, (40,), generator=g)
    fused, some = selected(logits, present, y)
    for i in range(40):
        stated = by_hand(logits[i], present[i], int(y[i]))
        assert bool(some[i]) == (stated is not None)
        if stated is not None:
            assert fused[i].tolist() == pytest.approx(stated, rel=1e-9)
    assert some.any()
    assert not some.all()


def test_a_client_that_is_certain_and_right_outweighs_one_in_doubt() -> None:
    logits = torch.tensor([[[60.0, 0.0], [0.1, 0.0]], [[60.0, 0.0], [70.0, 0.0]]], dtype=torch.float64)
    fused, _ = selected(logits, torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 0]))
    assert torch.isfinite(fused).all()
    torch.testing.assert_close(fused[0], logits[0, 0])
    torch.testing.assert_close(fused[1], logits[1].mean(0)), "both certain: equal weights"


def test_the_server_asks_for_what_it_gets_wrong_and_never_got_right(tmp_path: Any) -> None:
    ran = run(tmp_path / "a", "fedgems", {**PLAIN, "server_lr": 0.05}, rounds=4)
    right = torch.zeros(7, dtype=torch.bool)
    w, numbers = ran.setting.initial["server"], []
    for done in ran.rounds:
        right |= module_of(w)(public()).argmax(1) == public_labels()
        found = [sample_index(t).tolist() for t in tensors(ran, "proxy_indices", round=done.index)]
        assert found == ([(~right).nonzero().flatten().tolist()] if not right.all() else [])
        assert len(sent(ran, "logits", "client", done.index)) == (0 if right.all() else 3)
        numbers += [len(index) for index in found]
        w = done.models["server"]
    assert numbers[0] > 0
    assert len(set(numbers)) > 1, "the server learns"


def test_with_epsilon_one_the_clients_teach_the_server_nothing(tmp_path: Any) -> None:
    silent = [Outage(party=k, first=0, last=1) for k in records()]
    for epsilon, same in ((1.0, True), (0.5, False)):
        params = {**PLAIN, "epsilon": epsilon}
        one = run(tmp_path / f"one{epsilon}", "fedgems", params, rounds=2)
        two = run(tmp_path / f"two{epsilon}", "fedgems", params, rounds=2, outages=silent)
        assert equal(one.protocol.released(), two.protocol.released()) == same


def test_a_clients_targets_have_the_gradient_of_labels_and_distillation(tmp_path: Any) -> None:
    ran = run(tmp_path / "a", "fedgems", {"epsilon": 0.3}, rounds=1)
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    (told,) = (t["values"] for t in tensors(ran, "logits", "server"))
    y, p = public_labels(), told.softmax(1)
    by_paper = 0.3 * F.cross_entropy(z, y) + 0.7 * F.kl_div(z.log_softmax(1), p, reduction="batchmean")
    ours = F.cross_entropy(z, ran.protocol._mixed(y, told))
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (ours, by_paper)))


# -- labels of public samples -----------------------------------------------------------------------------------------


def planned(protocol: str, **changes: Any) -> Any:
    changes = {"splits__proxy": 0.3, "adversaries": ["server"], **changes}
    return simulated_case(validate(Spec, small_spec(protocol={"name": protocol}, **changes)), known(7))


def test_only_a_protocol_that_declares_it_knows_the_public_labels() -> None:
    labelled = {n for n in REGISTRY.names() if REGISTRY.load(n).card.needs_labels}
    assert labelled == {"fedgems"}
    case = planned("fedgems")
    assert torch.equal(case.common.public_labels, case.dataset.y[case.splits.proxy])
    assert planned("fedmd").common.public_labels is None


def test_an_attack_is_given_the_labels_with_the_samples() -> None:
    cards = {name: attacks.REGISTRY.describe(name) for name in ("coin-regression", "gmi")}
    for protocol, samples in (("fedgems", True), ("fedmd", False)):
        case = planned(protocol, splits__auxiliary=0.2)
        given = {name: known_to(case, assumptions(case, card)[0], card) for name, card in cards.items()}
        assert given["coin-regression"].public is not None
        assert given["gmi"].public is None
        assert given["gmi"].public_labels is None, "its samples are withheld"
        labels = given["coin-regression"].public_labels
        assert (labels is not None) == samples
        tensors = Tensors()
        trial = Trial(knowledge=given["coin-regression"], task=AttackTask(targets=("client/0",)), seed=1)
        again = unpacked(packed(trial, tensors), tensors.named).knowledge.public_labels
        assert again is labels


def test_a_red_team_is_handed_the_labels(tmp_path: Any) -> None:
    params = {"rounds": 1, "warm_up_steps": 0, "local_steps": 1, "distill_steps": 1, "server_epochs": 1}
    spec = small_spec(protocol={"name": "fedgems", "params": params}, splits__proxy=0.2, attacks=[])
    done = fdaudit.run(spec, tmp_path / "run")
    fdaudit.export_view(done, "server", tmp_path / "out")
    handed = load_file(tmp_path / "out" / "knowledge" / "public.safetensors")
    case = done.opened.case
    assert torch.equal(handed["y"], case.dataset.y[case.splits.proxy])
    assert any("before the first" in line and "labels" in line for line in done.result.plain()["limits"])


def labelled(path: Path, y: NDArray[Any]) -> dict[str, str]:
    """A dataset of black images with these labels."""
    parts = ("train", "val", "test")
    images = {f"{p}_images": np.zeros((len(y), 8, 8), np.uint8) for p in parts}
    np.savez(path, **images, **{f"{p}_labels": y[:, None] for p in parts})
    return {"name": f"npz:{path}"}


def test_another_public_dataset_brings_its_own_labels_and_needs_the_same_classes(tmp_path: Path) -> None:
    case = planned("fedgems", public_dataset=labelled(tmp_path / "ten.npz", np.arange(20) % 10))
    assert sorted(set(case.public_labels.tolist())) == list(range(10))
    fewer = labelled(tmp_path / "four.npz", np.arange(20) % 4)
    refused(lambda: planned("fedgems", public_dataset=fewer), "public_dataset.name", said="other classes")
    planned("fedmd", public_dataset=fewer)


def test_other_labels_make_another_run_for_who_knows_them(tmp_path: Path) -> None:
    """The same file name, so that only the labels differ."""
    found: dict[str, set[str]] = {"fedgems": set(), "fedmd": set()}
    for shift in (0, 1):
        other = labelled(tmp_path / "ten.npz", (np.arange(20) + shift) % 10)
        for protocol, identities in found.items():
            identities.add(planned(protocol, public_dataset=other).identity)
    assert {p: len(i) for p, i in found.items()} == {"fedgems": 2, "fedmd": 1}


def test_without_labels_it_says_what_is_missing(tmp_path: Any) -> None:
    setting = run(tmp_path / "a", "fedgems", {"local_steps": 1}, rounds=1).setting
    with pytest.raises(ProtocolError, match="no labels"):
        REGISTRY.load("fedgems")(configured("fedgems", {}), replace(setting, public_labels=None))
