"""No attack can reach the vault, a split, another party's model, or who is a member.

By type, and at run time: a spy attack is run as any attack is, and everything that its inputs lead to is walked.
What the walk would find if something leaked is tested on deliberate leaks.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
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
from scipy.stats import binomtest
from torch import Tensor

from fdaudit.audit import perform
from fdaudit.cells import Adversary, Stage
from fdaudit.data import ClientSplit, Dataset, Splits, make_splits
from fdaudit.federation import PartyData, Setting
from fdaudit.knowledge import Knowledge
from fdaudit.models import Architecture
from fdaudit.oracle import Oracle
from fdaudit.plan import AttackPlan, Plan, make_plan
from fdaudit.rng import child
from fdaudit.runs import Run
from fdaudit.spec import PartitionSpec, SplitSpec, load_spec
from fdaudit.training import Fit, Job, Trainer
from fdaudit.transcript import Transcript, read_messages
from fdaudit.truth import Truth
from fdaudit.types import AttackTask, Challenge, OracleHandle
from fdaudit.vault import Secrets, Vault
from fdaudit.view import View
from fdaudit.wire import Wire

from .doubles import HOOKS, SEED, registered, spec
from .walker import Forbidden, findings, own_thread, walk

ADVERSARIES = ["server", "client/0", "eavesdropper", "world", "server+client/1"]
AUDITOR_ONLY = (
    *(Vault, Secrets, Splits, ClientSplit, Dataset, Plan, AttackPlan, Run, Stage, Truth),
    *(Wire, Transcript, PartyData, Setting),
)


# -- by type ------------------------------------------------------------------------------------------------------


def _hints(cls: type) -> dict[str, Any]:
    """Annotations of a class's fields, and of what its properties and methods give."""
    names = {
        "Architecture": Architecture, "Tensor": Tensor, "Trainer": Trainer, "View": View, "torch": torch,
    }  # fmt: skip
    found = dict(typing.get_type_hints(cls, localns=names))
    own = [c for c in cls.__mro__ if c.__module__.startswith("fdaudit")]
    for name, member in ((n, m) for c in own for n, m in vars(c).items()):
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and not name.startswith("__"):
            found |= {f"{name}({k})": v for k, v in typing.get_type_hints(function, localns=names).items()}
    return found


def _types_in(hint: Any) -> set[Any]:
    """Every type inside an annotation such as `Mapping[str, tuple[Tensor, ...]] | None`."""
    inside = set().union(*(_types_in(a) for a in typing.get_args(hint)))
    if isinstance(hint, list):
        inside |= set().union(*(_types_in(a) for a in hint))
    return inside | ({hint} if isinstance(hint, type) else set())


def _reachable(cls: type) -> set[type]:
    seen: set[type] = set()
    agenda = [cls]
    while agenda:
        current = agenda.pop()
        if current not in seen:
            seen.add(current)
            if current.__module__.startswith(("fdaudit", __name__)):
                agenda += [t for hint in _hints(current).values() for t in _types_in(hint)]
    return seen


GIVEN = [View, Knowledge, AttackTask, Challenge, OracleHandle, Oracle]


@pytest.mark.parametrize("cls", GIVEN, ids=lambda c: c.__name__)
def test_no_type_that_an_attack_is_given_leads_to_one_that_only_the_auditor_holds(cls):
    assert not _reachable(cls) & set(AUDITOR_ONLY)


def test_the_search_by_type_goes_through_generics_callables_and_dataclasses():
    assert {View, Trainer, Architecture, Path, Tensor} <= _reachable(Knowledge)
    assert {Challenge, OracleHandle} <= _reachable(AttackTask)

    @dataclasses.dataclass
    class Leaky:
        ask: typing.Callable[[list[Tensor]], dict[str, Vault | None]]

    assert Vault in set().union(*(_types_in(h) for h in typing.get_type_hints(Leaky, localns={}).values()))


# -- at run time --------------------------------------------------------------------------------------------------


def forbidden(plan: Plan, run: Path, adversary: str, victims: typing.Iterable[str]) -> Forbidden:
    """Everything that an adversary must not reach: all records, indices, labels, weights but its own."""
    vault, members = Vault(run / "vault"), adversary.split("+")
    truth, data = Truth(plan, vault), plan.dataset
    challenged = {k: truth.challenge(k) for k in victims}
    allowed = [plan.auxiliary[0], *(c.x for c, _ in challenged.values())]
    allowed += [plan.records(k)[0] for k in plan.clients if k in members]
    known = {row.numpy().tobytes() for x in allowed for row in x}
    private = [row for row in data.x if row.numpy().tobytes() not in known and row.unique().numel() > 1]
    tensors = {f"splits {n}": t for n, t in plan.splits.to_dict().items() if n != "class_table"}
    tensors |= {f"labels of {k}": plan.records(k)[1] for k in plan.clients if k not in members}
    for name in [*vault.names("models"), *vault.names("state")]:
        if name.removeprefix("models/").replace("-", "/") not in members:
            weights = {n: t for n, t in vault.load(name).items() if t.is_floating_point()}
            tensors |= {f"{name}, {n}": t for n, t in weights.items()}
    view = Stage(plan, run).view(adversary)
    legitimate = {t.numpy().tobytes() for t in plan.initial().values()}
    legitimate |= {t.numpy().tobytes() for m in view.messages for t in view.tensors(m).values()}
    seen = {m.seq for m in view.messages}
    whole = View(**{**vars(view), "messages": ()})
    for message in read_messages(run / "transcript"):
        if message.seq not in seen:
            tensors |= {f"message {message.seq}, {n}": t for n, t in whole.tensors(message).items()}
    return Forbidden(
        types=AUDITOR_ONLY,
        numbers=frozenset({plan.seed}),
        blobs=(vault.secrets.secret,),
        paths=(run,),
        rows=torch.stack(private),
        tensors={n: t for n, t in tensors.items() if t.numpy().tobytes() not in legitimate},
        flags={f"who of {k} is a member": member for k, (_, member) in challenged.items()},
    )


@dataclasses.dataclass
class Audited:
    run: Path
    plan: Plan
    found: dict[str, list[str]]
    ways: dict[str, set[str]]


def _use(view: View, knowledge: Knowledge, task: AttackTask) -> dict[str, object]:
    """What an attack gets by using its means: answers, features, a fit, a rehearsal."""
    assert knowledge.auxiliary
    assert knowledge.train
    assert knowledge.architecture
    x, y = knowledge.auxiliary
    weights = {n: t for n, t in knowledge.architecture.build(child(1, "mine")).state_dict().items()}
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
        limits = forbidden(made.plan, run, view.name, () if name == "control" else task.targets)
        given = {"view": view, "knowledge": knowledge, "task": task, "generator": generator}
        given["thread"] = own_thread()
        before = findings(given, limits)
        given |= {"seen": [view.tensors(m) for m in view.messages], **_use(view, knowledge, task)}
        made.found[name] = before + findings(given, limits)
        made.ways[name] = {way for way, _ in walk(given)}

    with registered("spy"):
        wanted = load_spec(spec(adversaries=ADVERSARIES))
        made.plan = make_plan(wanted, SEED)
        HOOKS["spy"] = look
        try:
            perform(wanted, run)
        finally:
            del HOOKS["spy"]
    cells = Run(run).result["cells"]
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
        ("server", "knowledge.encode._module"),
        ("server", "knowledge.rehearse._folder"),
        ("server", "task.challenges['client/0'].x"),
        ("client/0", "view.own_data['client/0'][0]"),
        ("world", "task.oracle._questions.queue"),
        ("world", "thread._target.<closure attack>.<closure runner>"),
    ],
)
def test_the_walk_goes_where_an_attack_could_go(audited, adversary, way):
    ways = audited.ways[adversary]
    assert any(w.replace(".<held>", "").startswith(way) for w in ways), sorted(ways)[:200]


def test_a_client_holds_its_own_records_and_nobody_elses(audited, stage):
    with stage.adversary("client/0") as adversary:
        assert set(adversary.view.own_data) == {"client/0"}
        x, y = audited.plan.records("client/0")
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


# -- leaks are found ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Hand:
    """What the server's attack is given, and what only the auditor holds."""

    plan: Plan
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
        return self.plan.records("client/2")[0]

    @property
    def members(self) -> Tensor:
        return Truth(self.plan, self.vault).challenge("client/0")[1]


@pytest.fixture(scope="module")
def stage(audited):
    return Stage(audited.plan, audited.run)


@pytest.fixture
def hand(audited, stage):
    with stage.adversary("server") as adversary:
        task = stage.task("server", audited.plan.attacks[0])
        limits = forbidden(audited.plan, audited.run, "server", task.targets)
        yield Hand(audited.plan, audited.run, adversary, stage.knowledge(adversary), task, limits)


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
    trainer = hand.plan.trainer()
    trainer.predict(hand.weights, hand.plan.auxiliary[0][:1])
    return trainer


def _closure(hand: Hand) -> object:
    weights, trainer = hand.weights, hand.plan.trainer()
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
    "membership as the order of an index": lambda h: h.plan.splits.clients[0].members,
    "membership as a label of another dtype": lambda h: (~h.members).to(torch.float64) * 3,
    "a slice that shares the dataset's storage": lambda h: h.plan.dataset.x[:1],
    "an array over the dataset": lambda h: h.plan.dataset.x.numpy()[:1],
    "a record in double precision": lambda h: h.private[5].double(),
    "labels of a client": lambda h: [int(y) for y in h.plan.records("client/2")[1]],
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
    "splits": lambda h: h.plan.splits,
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


# -- candidates ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(audited):
    """Challenges of one client under 200 seeds, each with who is a member."""
    plan, made = audited.plan, []
    for seed in range(200):
        splits = make_splits(
            plan.dataset, 3, PartitionSpec(), SplitSpec(candidates=10), child(seed, "splits")
        )
        one = dataclasses.replace(plan, seed=seed, splits=splits)
        made.append(Truth(one, Vault(audited.run / "vault")).challenge("client/1"))
    return made


def _fair(successes: int, n: int) -> bool:
    return bool(binomtest(successes, n).pvalue > 0.001)


def test_neither_position_nor_pair_number_nor_order_within_a_pair_tells_members(many):
    members = torch.stack([member for _, member in many])
    seeds, n = members.shape
    for position in range(n):
        assert binomtest(int(members[:, position].sum()), seeds).pvalue > 0.001 / n
    first_half = int(members[:, : n // 2].sum())
    assert _fair(first_half, seeds * n // 2)
    first_of_pair = lower_number = 0
    for challenge, member in many:
        for pair in range(n // 2):
            one, two = (challenge.pair == pair).nonzero().flatten().tolist()
            assert bool(member[one]) != bool(member[two])
            first_of_pair += bool(member[one])
        ranked = challenge.pair[member]
        lower_number += int((ranked[: n // 4] < n // 4).sum())
    assert _fair(first_of_pair, seeds * n // 2)
    assert _fair(lower_number, seeds * (n // 4))


def test_candidates_are_copies_in_storage_of_their_own_that_look_alike(many, audited):
    for challenge, member in many[:5]:
        for tensor in (challenge.x, challenge.y, challenge.pair):
            assert tensor.is_contiguous()
            assert tensor.storage_offset() == 0
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            assert tensor.untyped_storage().data_ptr() != audited.plan.dataset.x.untyped_storage().data_ptr()
            assert tensor._version == 0
            assert not tensor.requires_grad
        assert challenge.x.dtype == torch.float32
        assert torch.equal(challenge.y[member].sort().values, challenge.y[~member].sort().values)
        assert {f.name for f in dataclasses.fields(challenge)} == {"target", "x", "y", "pair", "design"}
