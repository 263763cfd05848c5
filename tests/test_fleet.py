"""Groups of jobs fitted elsewhere: who may leave, in what company, and the same bits wherever that is; without Ray."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks._shadows import in_and_out, shadow_models
from hypothesis import given
from hypothesis import strategies as st

import fdaudit
from fdaudit import fleet as fleets
from fdaudit import ray_fleet
from fdaudit.cells import Stage
from fdaudit.elsewhere import Elsewhere
from fdaudit.errors import RunError, TrainingDivergedError
from fdaudit.execution import Execution
from fdaudit.fleet import WORTH, groups_of, may_leave
from fdaudit.guard import Guard
from fdaudit.knowledge import Knowledge
from fdaudit.models import Architecture, architecture
from fdaudit.ray_fleet import _fitted, _group, fit_group
from fdaudit.rng import SecretStream, child
from fdaudit.spec import ModelSpec
from fdaudit.storage import encode
from fdaudit.training import Fit, Fitted, Job, Trainer, draw_batches, parameters_of

from .run_cases import finished, tiny, tree

SHAPE, CLASSES = (1, 16, 16), 3
LOOP = Execution(device="cpu", threads=2, strategy="loop", memory_format="channels_last")


class Store:
    """In the place of Ray's object store: payloads are what they are exchanged for."""

    def put(self, tensors: dict[str, torch.Tensor]) -> tuple[str, bytes]:
        return encode(tensors).hex(), encode(tensors)


class Fleet:
    """Fits groups here, of what would be sent."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.sent: list[list[list[str]]] = []

    def fit(
        self,
        network: Architecture,
        execution: Execution,
        groups: Sequence[Sequence[Job]],
        fit: Fit,
        sent: dict[str, Any],
    ) -> list[list[Fitted]]:
        self.sent.append([[job.party for job in jobs] for jobs in groups])
        sent["what"] = "was sent"
        found, threads = [], torch.get_num_threads()
        for jobs in groups:
            group, payloads = _group(network, execution, jobs, fit, Store())  # type: ignore[arg-type]
            made = fit_group(group, *payloads)
            torch.set_num_threads(threads)
            if isinstance(made, str):
                raise RunError("executor", "here", made, "Look.")
            found.append([_fitted(job, *values) for job, values in zip(jobs, made, strict=True)])
        return found


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is worth sending."""
    monkeypatch.setattr(fleets, "WORTH", 20)


def network(name: str = "cnn-strided", **params: Any) -> Architecture:
    return architecture(ModelSpec(name=name, params=params), SHAPE, CLASSES)


def jobs(count: int, net: Architecture, **more: Any) -> list[Job]:
    made = []
    for k in range(count):
        g = child(1, "job", k)
        x = torch.rand(30, *SHAPE, generator=g)
        y = torch.randint(CLASSES, (30,), generator=g)
        start = parameters_of(net.build(child(1, "start", k)))
        batches = draw_batches(30, 8, steps=3 + k, generator=g)
        given = {"anchor": start, "seed": k, **more}
        made.append(Job(party=f"client/{k}", parameters=start, x=x, targets=y, batches=batches, **given))
    return made


def same(a: Fitted, b: Fitted) -> bool:
    return (
        list(a.parameters) == list(b.parameters)
        and list(a.moments) == list(b.moments)
        and all(torch.equal(a.parameters[n], b.parameters[n]) for n in a.parameters)
        and all(torch.equal(a.moments[n], b.moments[n]) for n in a.moments)
        and torch.equal(a.losses, b.losses)
        and all(torch.equal(p, q) for p, q in zip(a.batches, b.batches, strict=True))
    )


# -- who leaves, and with whom -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3 * WORTH), max_size=12), st.integers(1, 9))
def test_every_job_is_in_one_group_and_groups_are_worth_sending(records: list[int], size: int) -> None:
    made = [
        Job(party=str(k), parameters={}, x=torch.zeros(0), targets=torch.zeros(0), batches=[torch.zeros(n)])
        for k, n in enumerate(records)
    ]
    groups = groups_of(made, size)
    assert len(groups) <= size
    assert len(groups) * WORTH <= sum(records)
    if groups:
        assert sorted(n for group in groups for n in group) == list(range(len(made)))
        assert all(group == sorted(group) for group in groups)
        loads = [sum(records[n] for n in group) for group in groups]
        assert max(loads) - min(loads) <= max(records), "as even as single jobs allow"
    assert may_leave(made) == (len(made) > 1 and sum(records) >= 2 * WORTH)


def test_a_job_with_secret_coins_does_not_leave(little: None) -> None:
    first, second = jobs(2, network())
    assert may_leave([first, second])
    guard = Guard(rule=None, noise=SecretStream(bytes(16), "coins"))  # type: ignore[arg-type]
    assert not may_leave([first, replace(second, guard=guard)])


DROPOUT = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, input_shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(256, 8), nn.Dropout(0.5), nn.Linear(8, classes))
"""


def test_what_stays_here(little: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that advance together, a network with dropout, one job, gradients."""
    (tmp_path / "fleet_dropout.py").write_text(DROPOUT)
    monkeypatch.syspath_prepend(tmp_path)
    far, net, fit = Fleet(), network(), Fit(lr=0.1)
    stacked = replace(LOOP, strategy="stacked", memory_format="contiguous")
    alike = [replace(j, batches=j.batches[:3]) for j in jobs(3, net)]
    Trainer(net, stacked, far).fit(alike, fit)
    random = network("import:fleet_dropout:Net")
    Trainer(random, LOOP, far).fit(jobs(3, random), fit)
    Trainer(net, LOOP, far).fit(jobs(1, net), fit)
    Trainer(net, LOOP, far).gradients(jobs(3, net), fit)
    assert far.sent == []
    Trainer(net, stacked, far).fit(jobs(3, net), fit)  # of unlike lengths: each by itself
    assert len(far.sent) == 1


def test_a_fleet_of_one_is_sent_nothing(little: None) -> None:
    far, net = Fleet(size=1), network()
    Trainer(net, LOOP, far).fit(jobs(3, net), Fit(lr=0.1))
    assert far.sent == []


# -- the same bits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "params", "fit", "moments"),
    [
        ("cnn-strided", {}, Fit(lr=0.1, mu=0.1), None),
        ("cnn-strided", {}, Fit(lr=0.01, optimizer="adam", final_lr=0.0), {}),
        ("mlp", {}, Fit(lr=0.1, momentum=0.9, weight_decay=0.01), {}),
        ("resnet8", {"norm": "batch"}, Fit(lr=0.1), None),
    ],
)
def test_jobs_come_back_bit_for_bit(
    model: str, params: dict[str, Any], fit: Fit, moments: Any, little: None
) -> None:
    far, net = Fleet(), network(model, **params)
    made = jobs(5, net, moments=moments)
    here = Trainer(net, LOOP).fit(made, fit)
    there = Trainer(net, LOOP, far).fit(made, fit)
    assert [len(groups) for groups in far.sent] == [2]
    assert all(same(a, b) for a, b in zip(here, there, strict=True))
    if moments is not None:  # and go on from what came back
        on = [
            replace(j, parameters=f.parameters, moments=f.moments) for j, f in zip(made, there, strict=True)
        ]
        again = [Trainer(net, LOOP, f).fit(on, fit) for f in (None, far)]
        assert all(same(a, b) for a, b in zip(*again, strict=True))


def test_a_loss_that_is_no_number_stops_the_training_as_here(little: None) -> None:
    net, fit = network(), Fit(lr=1e30)
    said = []
    for far in (None, Fleet()):
        with pytest.raises(TrainingDivergedError) as error:
            Trainer(net, LOOP, far).fit(jobs(4, net), fit)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_what_goes_wrong_elsewhere_is_said(little: None) -> None:
    net = network()
    with pytest.raises(RunError, match=r"mu = 0\.1 needs an anchor"):
        Trainer(net, LOOP, Fleet()).fit(jobs(3, net, anchor=None), Fit(lr=0.1, mu=0.1))


def test_a_worker_with_other_versions_fits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    group, payloads = _group(net, LOOP, jobs(1, net), Fit(lr=0.1), Store())  # type: ignore[arg-type]
    said = fit_group(replace(group, versions={"torch": "0.1"}), *payloads)
    assert isinstance(said, str)
    assert "the machine that asks has 0.1" in said


def test_what_jobs_share_is_one_payload() -> None:
    net = network()
    first, second = jobs(2, net)
    second = replace(second, x=first.x, targets=first.targets, parameters=first.parameters, anchor=None)
    group, payloads = _group(net, LOOP, [first, second], Fit(lr=0.1), Store())  # type: ignore[arg-type]
    shared = {"parameters", "x", "targets"}
    assert all(group.jobs[0][part] == group.jobs[1][part] for part in shared)
    assert group.jobs[0]["anchor"] == group.jobs[0]["parameters"], "FedProx stays near where it starts"
    assert len(payloads) == len(shared) + 2, "and each one's batches"


def test_payloads_are_put_once_and_kept_for_the_next_jobs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    put = []
    monkeypatch.setattr(ray, "put", lambda data: put.append(data) or len(put))
    sent: dict[str, Any] = {}
    net = network()
    made = jobs(2, net, anchor=None)
    for round_, wanted in ((made, 8), (made, 8), (made[:1], 8)):
        store = ray_fleet._Store(sent)
        _group(net, LOOP, round_, Fit(lr=0.1), store)
        store.forget_others()
        assert len(put) == wanted
        assert len(sent) == 4 * len(round_)


# -- in a run ------------------------------------------------------------------------------------------------------


def test_clients_are_fitted_in_groups_and_the_run_is_the_same(little: None, tmp_path: Path) -> None:
    changes = {"clients": 4, "protocol__params__local_steps": 3, "references": ["standalone"]}
    here, far = finished(tmp_path / "here", **changes), Fleet()
    there = fdaudit.run(tiny(**changes), tmp_path / "there", seed_from=here, elsewhere=Elsewhere(fleet=far))
    parties = [f"client/{k}" for k in range(4)]
    assert len(far.sent) == 2 + 2, "two rounds of the protocol and of the reference line"
    for groups in far.sent:
        assert sorted(party for group in groups for party in group) == parties
    assert tree(there.directory) == tree(here)


def test_an_attack_s_training_core_remembers_nothing_that_was_sent(little: None, tmp_path: Path) -> None:
    far = Fleet()
    run = fdaudit.run(
        tiny(clients=4, protocol__params__local_steps=3), tmp_path / "run", elsewhere=Elsewhere(fleet=far)
    )
    assert far.sent
    stage = Stage(replace(run.plan, fleet=far), run.directory)
    with stage.adversary("server") as adversary:
        train = stage.knowledge(adversary).train
    assert train is not None
    assert (train._fleet, train._sent) == (far, {})


def test_shadow_models_are_fitted_in_groups(little: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FDAUDIT_CACHE", raising=False)
    net, far, found = network("mlp", widths=[8]), Fleet(), []
    g = child(2, "pool")
    x, y = torch.rand(40, *SHAPE, generator=g), torch.randint(CLASSES, (40,), generator=g)
    inside = in_and_out(4, 40, child(2, "inside"))
    for number, fleet in enumerate((None, far)):
        monkeypatch.setattr("fdaudit.cache._kept", OrderedDict())
        known = Knowledge(architecture=net, train=Trainer(net, LOOP, fleet), classes=CLASSES)
        found.append(shadow_models(known, x, y, inside, seed=5, most_steps=60))
        assert bool(far.sent) == bool(number)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(*found, strict=True) for name in a), (
        "bit for bit"
    )
    assert {p for groups in far.sent for group in groups for p in group} == {f"shadow {k}" for k in range(4)}
