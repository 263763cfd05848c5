"""No attack can reach the vault, a split, another party's model, or who is a member, at run time.

A spy attack is run as any attack is, and everything that its inputs lead to is walked.
What the walk would find if something leaked is tested on deliberate leaks.
"""

from __future__ import annotations

import dataclasses
import functools
import queue
import threading
import types
import typing
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.audit.pipeline import perform
from fdaudit.audit.run import Run
from fdaudit.evaluation.stage import Adversary, Stage
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Vault
from fdaudit.training.trainer import Fit, Job, Trainer
from fdaudit.transcript.transcript import read_messages
from fdaudit.types import AttackTask

from ..helpers.doubles import HOOKS, SEED, registered, spec
from ..helpers.run_cases import known
from ..helpers.walker import Forbidden, findings, own_thread, walk
from .test_isolation_types import AUDITOR_ONLY

ADVERSARIES = ["server", "client/0", "eavesdropper", "world", "server+client/1"]


# -- at run time --------------------------------------------------------------------------------------------------


def forbidden(case: Case, run: Path, adversary: str, victims: typing.Iterable[str]) -> Forbidden:
    """Everything that an adversary must not reach: all records, indices, labels, weights but its own."""
    vault, members = Vault(run / "vault"), adversary.split("+")
    truth, data = Truth(case, vault), case.dataset
    challenged = {k: truth.challenge(k) for k in victims}
    allowed = [case.public, case.auxiliary[0], *(c.x for c, _ in challenged.values())]
    allowed += [case.records(k)[0] for k in case.clients if k in members]
    known = {row.numpy().tobytes() for x in allowed for row in x}
    private = [row for row in data.x if row.numpy().tobytes() not in known and row.unique().numel() > 1]
    tensors = {f"splits {n}": t for n, t in case.splits.to_dict().items() if n != "class_table"}
    tensors |= {f"labels of {k}": case.records(k)[1] for k in case.clients if k not in members}
    for name in [*vault.names("models"), *vault.names("state")]:
        if name.removeprefix("models/").replace("-", "/") not in members:
            weights = {n: t for n, t in vault.load(name).items() if t.is_floating_point()}
            tensors |= {f"{name}, {n}": t for n, t in weights.items()}
    for k in (k for k in case.clients if k not in members):
        drawn = case.networks.initial([k], case.seed)[k]
        tensors |= {f"initial weights of {k}, {n}": t for n, t in drawn.items() if t.unique().numel() > 1}
    view = RunDirectory(run, case).view(adversary)
    legitimate = {t.numpy().tobytes() for t in case.initial().values()}
    legitimate |= {t.numpy().tobytes() for m in view.messages for t in view.tensors(m).values()}
    seen = {m.seq for m in view.messages}
    whole = View(**{**vars(view), "messages": ()})
    for message in read_messages(run / "transcript"):
        if message.seq not in seen:
            tensors |= {f"message {message.seq}, {n}": t for n, t in whole.tensors(message).items()}
    return Forbidden(
        types=AUDITOR_ONLY,
        numbers=frozenset({case.seed, case.secrets.seed}),
        blobs=(vault.secrets.secret,),
        paths=(run,),
        rows=torch.stack(private),
        tensors={n: t for n, t in tensors.items() if t.numpy().tobytes() not in legitimate},
        flags={f"who of {k} is a member": member for k, (_, member) in challenged.items()},
        shared={"the dataset's images": data.x, "the dataset's labels": data.y, **case.splits.to_dict()},
    )


@dataclasses.dataclass
class Audited:
    run: Path
    case: Case
    found: dict[str, list[str]]
    ways: dict[str, set[str]]


def _use(view: View, knowledge: Knowledge, task: AttackTask) -> dict[str, object]:
    """What an attack gets by using its means: answers, features, a fit, a rehearsal."""
    assert knowledge.auxiliary
    assert knowledge.train
    assert knowledge.architecture
    x, y = knowledge.auxiliary
    weights = dict(knowledge.architecture.build(child(1, "mine")).state_dict())
    job = Job(party="mine", parameters=weights, x=x, targets=y, batches=[torch.arange(8)])
    used: dict[str, object] = {
        "fitted": knowledge.train.fit([job], Fit(lr=0.1)),
        "logits": knowledge.train.predict(weights, x[:4]),
    }
    if knowledge.encode is not None:
        used["features"] = knowledge.encode(x[:4])
    if knowledge.rehearse is not None:
        rehearsed = knowledge.rehearse([(x[:40], y[:40]), (x[40:80], y[40:80])], 11)
        used["rehearsed"] = rehearsed
        used["rehearsed tensors"] = [rehearsed.tensors(m) for m in rehearsed.messages]
    if task.oracle is not None:
        used["answer"] = task.oracle.query(x[:4])
    return used


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A run against every kind of adversary, walked from inside the attack, before and after it used its means."""
    run = tmp_path_factory.mktemp("isolation") / "run"
    made = Audited(run, None, {}, {})  # type: ignore[arg-type]

    def look(view, knowledge, task, generator):
        # Without hyper-parameters it is a control, whose published model no victim had a part in.
        name = view.name if view.hyperparameters else "control"
        limits = forbidden(made.case, run, view.name, () if name == "control" else task.targets)
        given = {"view": view, "knowledge": knowledge, "task": task, "generator": generator}
        given["thread"] = own_thread()
        before = findings(given, limits)
        given |= {"seen": [view.tensors(m) for m in view.messages], **_use(view, knowledge, task)}
        made.found[name] = before + findings(given, limits)
        made.ways[name] = {way for way, _ in walk(given)}

    with registered("spy"), pytest.MonkeyPatch.context() as patch:
        wanted = load_spec(spec(adversaries=ADVERSARIES))
        made.case = simulated_case(wanted, known(SEED))
        patch.setattr(
            "fdaudit.scoring.run_directory.simulated_case", lambda spec, secrets: made.case
        )  # one dataset, at one address
        HOOKS["spy"] = look
        try:
            perform(wanted, run)
        finally:
            del HOOKS["spy"]
    cells = Run(run).result.plain()["cells"]
    assert [
        c["reason"] for c in cells if c["status"] == "failed"
    ] == []  # whatever `look` raised would hide there
    assert {c["adversary"] for c in cells} == set(ADVERSARIES)
    return made


@pytest.mark.parametrize("adversary", [*ADVERSARIES, "control"])
def test_nothing_that_an_attack_is_given_leads_to_what_it_must_not_have(audited, adversary):
    assert audited.found[adversary] == []


@pytest.mark.parametrize(
    ("adversary", "way"),
    [
        ("server", "view.messages[0]"),
        ("server", "view.directory"),
        ("server", "knowledge.train._module._modules['head']"),
        ("server", "knowledge.encode.auxiliary"),
        ("server", "knowledge.rehearse.own"),
        ("server", "task.challenges['client/0'].x"),
        ("client/0", "view.own_data['client/0'][0]"),
        ("world", "task.oracle._questions.queue"),
        ("world", "thread._target.<closure attack>.<closure view>"),
    ],
)
def test_the_walk_goes_where_an_attack_could_go(audited, adversary, way):
    ways = audited.ways[adversary]
    assert any(w.replace(".<held>", "").startswith(way) for w in ways), sorted(ways)[:200]


def test_a_client_holds_its_own_records_and_nobody_elses(audited, stage):
    with stage.adversary("client/0") as adversary:
        assert set(adversary.view.own_data) == {"client/0"}
        x, y = audited.case.records("client/0")
        assert torch.equal(adversary.view.own_data["client/0"][0], x)
        assert torch.equal(adversary.view.own_data["client/0"][1], y)
    with stage.adversary("server") as adversary:
        assert not adversary.view.own_data


def test_what_one_adversary_rehearses_no_other_can_read(stage):
    with stage.adversary("client/0") as client, stage.adversary("server") as server:
        stage.knowledge(client).rehearse([client.view.own_data["client/0"]] * 2, 3)  # type: ignore[misc]
        assert list(client.scratch.iterdir())
        assert not list(server.scratch.iterdir())
        limits = Forbidden(paths=(client.scratch, client.view.directory))
        roots = {"view": server.view, "knowledge": stage.knowledge(server), "task": None}
        assert findings(roots, limits) == []
    assert not client.scratch.exists()
    assert not client.view.directory.exists()


def test_what_is_rehearsed_on_auxiliary_records_alone_is_run_once(audited, tmp_path):
    stage = Stage(RunDirectory(audited.run, audited.case), tmp_path)
    x, y = audited.case.auxiliary
    data = [(x[:40], y[:40]), (x[40:80], y[40:80])]
    with stage.adversary("client/0") as client, stage.adversary("server") as server:
        rehearse = {a.name: stage.knowledge(a).rehearse for a in (client, server)}
        own = rehearse["client/0"]([client.view.own_data["client/0"], data[1]], 3)
        assert not list(tmp_path.iterdir())
        seen = {name: one(data, 3) for name, one in rehearse.items()}
        assert len(list(tmp_path.iterdir())) == 1
        assert not list(server.scratch.iterdir())
        alone = Stage(RunDirectory(audited.run, audited.case))
        with alone.adversary("server") as by_itself:
            again = alone.knowledge(by_itself).rehearse(data, 3)
            assert [m.sha256 for m in again.messages] == [m.sha256 for m in seen["server"].messages]
        assert seen["client/0"].name == own.name == "client/0"
        assert all("client/0" in m.parties() for m in seen["client/0"].messages)
        rehearse["server"](data, 4)
        assert len(list(tmp_path.iterdir())) == 2


# -- leaks are found ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Hand:
    """What the server's attack is given, and what only the auditor holds."""

    case: Case
    run: Path
    adversary: Adversary
    knowledge: Knowledge
    task: AttackTask
    limits: Forbidden

    @property
    def vault(self) -> Vault:
        return Vault(self.run / "vault")

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.vault.load("models/client-2")

    @property
    def private(self) -> Tensor:
        return self.case.records("client/2")[0]

    @property
    def members(self) -> Tensor:
        return Truth(self.case, self.vault).challenge("client/0")[1]


@pytest.fixture(scope="module")
def stage(audited):
    return Stage(RunDirectory(audited.run, audited.case))


@pytest.fixture
def hand(audited, stage):
    with stage.adversary("server") as adversary:
        task = stage.task("server", audited.case.attacks[0])
        limits = forbidden(audited.case, audited.run, "server", task.targets)
        yield Hand(audited.case, audited.run, adversary, stage.knowledge(adversary), task, limits)


class _Handle:
    """An oracle handle with too much behind it."""

    def __init__(self, behind: object) -> None:
        self.behind = behind

    def query(self, x: Tensor) -> Tensor:
        return x


class _Slotted:
    __slots__ = ("_kept",)

    def __init__(self, kept: object) -> None:
        self._kept = kept


def _loaded(hand: Hand) -> Trainer:
    """A training core that last fitted somebody's model."""
    trainer = hand.case.trainer()
    trainer.predict(hand.weights, hand.case.auxiliary[0][:1])
    return trainer


def _closure(hand: Hand) -> object:
    weights, trainer = hand.weights, hand.case.trainer()
    return lambda x: trainer.predict(weights, x)


def _generator(hand: Hand) -> object:
    def work(rows: Tensor) -> Any:
        yield len(rows)
        yield rows

    made = work(hand.private)
    next(made)
    return made


def _traceback(hand: Hand) -> object:
    def fail() -> None:
        weights = hand.weights
        raise ValueError(f"{len(weights)} tensors")

    try:
        fail()
    except ValueError as error:
        return error


def _queue(kind: Any, item: object) -> object:
    made = kind()
    made.put(item)
    return made


def _graph(hand: Hand) -> object:
    """A tensor of nothing but zeros whose autograd graph saved a private record."""
    weight = torch.zeros(64, requires_grad=True)
    return hand.private[0].flatten() * weight


def _link(hand: Hand) -> object:
    link = hand.adversary.view.directory / "payloads" / "more.safetensors"
    link.symlink_to(hand.run / "vault" / "splits.safetensors")
    return hand.adversary.view


def _copied_file(hand: Hand) -> object:
    (hand.adversary.view.directory / "notes").write_bytes(b"x" * 4 + hand.private[3].numpy().tobytes())
    return hand.adversary.view


def _with_property(hand: Hand) -> object:
    secret = hand.vault.secrets.secret
    return type("Sly", (), {"__module__": __name__, "x": property(lambda self: secret)})()


LEAKS: dict[str, typing.Callable[[Hand], object]] = {
    "an oracle that closes over the model": lambda h: types.SimpleNamespace(query=_closure(h)),
    "an oracle with the model as an attribute": lambda h: _Handle(h.weights),
    "an oracle whose method is bound to the vault": lambda h: types.SimpleNamespace(query=h.vault.load),
    "a method bound to a holder of the vault": lambda h: _Handle(h.vault).query,
    "a view that names the run": lambda h: dataclasses.replace(h.adversary.view, directory=h.run / "transcript"),
    "the run's path as text": lambda h: {"log": f"written to {h.run}/vault"},
    "a link into the run inside the view": _link,
    "a private record in a file of the view": _copied_file,
    "a training core with somebody's weights": lambda h: dataclasses.replace(h.knowledge, train=_loaded(h)),
    "membership beside the candidates": lambda h: {"client/0": (h.task.challenges["client/0"], h.members.tolist())},
    "membership as the order of an index": lambda h: h.case.splits.clients[0].members,
    "membership as a label of another dtype": lambda h: (~h.members).to(torch.float64) * 3,
    "a slice that shares the dataset's storage": lambda h: h.case.dataset.x[:1],
    "a slice that shares the labels' storage": lambda h: h.case.dataset.y[:0],
    "an array over the dataset": lambda h: h.case.dataset.x.numpy()[:1],
    "a record in double precision": lambda h: h.private[5].double(),
    "labels of a client": lambda h: [int(y) for y in h.case.records("client/2")[1]],
    "a default argument": lambda h: eval("lambda x, w=w: x", {"w": h.weights}),
    "a keyword default": lambda h: eval("lambda x, *, w=w: x", {"w": h.weights}),
    "a partial": lambda h: functools.partial(max, h.private[7]),
    "a generator's locals": _generator,
    "a slot": lambda h: _Slotted(h.vault),
    "a weak reference": lambda h: [weakref.ref(KEPT.setdefault("vault", h.vault))],
    "a weak proxy": lambda h: [weakref.proxy(KEPT.setdefault("vault", h.vault))],
    "a queue": lambda h: _queue(queue.Queue, h.private),
    "a simple queue": lambda h: _queue(queue.SimpleQueue, h.private),
    "a thread's arguments": lambda h: threading.Thread(target=print, args=(h.vault,)),
    "a kept traceback": _traceback,
    "an autograd graph": _graph,
    "an iterator": lambda h: map(len, iter([h.private])),
    "a cache": lambda h: functools.lru_cache(_Handle(h.vault).query),
    "a property's closure": _with_property,
    "an open file": lambda h: (h.run / "vault" / "splits.safetensors").open("rb"),
    "the secret in hexadecimal": lambda h: "salt " + h.vault.secrets.secret.hex(),
    "the secret inside bytes": lambda h: memoryview(b"--" + h.vault.secrets.secret),
    "the seed": lambda h: {"seed": np.int64(SEED)},
    "a generator seeded with the run's seed": lambda h: torch.Generator().manual_seed(SEED),
    "splits": lambda h: h.case.splits,
    "an upload that another sent to a third": lambda h: _Handle({n: t.clone() for n, t in h.weights.items()}),
}  # fmt: skip
KEPT: dict[str, object] = {}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("leak", LEAKS)
def test_a_deliberate_leak_is_found(hand, leak):
    roots = {"knowledge": hand.knowledge, "task": hand.task, "leak": LEAKS[leak](hand)}
    found = findings(roots, hand.limits)
    assert found, leak
    assert all(f.startswith("leak") or "directory" in f or "_folder" in f for f in found), found


def test_without_a_leak_the_same_hand_is_clean(hand):
    roots = {"knowledge": hand.knowledge, "task": hand.task, "view": hand.adversary.view}
    assert findings(roots, hand.limits) == []
