"""The conformance check of a protocol."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fdaudit import defenses, protocols
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.federation.protocol import FederatedProtocol, PartyData, ProtocolConfig, Round
from fdaudit.federation.rehearsal import with_messages
from fdaudit.storage.files import decode, encode
from fdaudit.tasks import SINGLE_LABEL, TASKS, Task
from fdaudit.testing.declared import check_dependence, check_messages
from fdaudit.testing.extensions import (
    check_settings,
    during,
    fail,
    global_seed,
    has_cuda,
    load_extension,
    read_settings,
    torch_defaults_kept,
)
from fdaudit.testing.federation import CLASSES, SIZES, common, records_of
from fdaudit.testing.running import ProtocolRun, run_protocol
from fdaudit.transcript.messages import role
from fdaudit.transcript.wire import Outage

__all__ = ["check_protocol"]

_ROUNDS = 3
_GONE = "client/1"
"""The client that goes silent."""


def check_protocol(
    protocol: type[FederatedProtocol] | str,
    params: Mapping[str, Any] | None = None,
    *,
    task: Task | None = None,
) -> None:
    """Check that a protocol keeps the guarantees of `FederatedProtocol`, on three clients with a few records.

    It checks that

    * wrong settings are refused with a SpecError that names the field;
    * two runs of a seed are equal bit for bit, another seed gives another run, and global generators are neither used
      nor moved;
    * a run that is stopped after any round and resumed is the same, also with noise on its messages;
    * the record is sound, and what is released is what was published;
    * the card is true: kinds, senders, receivers, tensors, fixed sizes and public indices;
    * nothing bypasses the wire, and a message declares everything that it depends on;
    * what was delivered, the records, the public samples with their classes, and PyTorch's defaults are never changed;
    * a run of one round ends, too;
    * a round is completed without silent clients, without withheld kinds, and for a class that no one holds;
    * clients may have networks of their own, if the card says so;
    * it also runs on CUDA, where there is a device.

    Args:
        protocol: the class, its public name, or `import:module:Class`.
        params: settings that make a run short; `rounds` is 3 unless given, or the default if 3 is refused.
        task: the learning task; default: the first that the card names.

    Raises:
        AssertionError: it breaks a guarantee; the text names it.
    """
    cls = load_extension(protocol, protocols.REGISTRY)
    name = cls.card.name
    config = _short(name, cls, params or {})
    check_settings(name, cls.Config, config.model_dump(mode="json"))
    learned = task or (SINGLE_LABEL if SINGLE_LABEL.name in cls.card.tasks else TASKS[cls.card.tasks[0]])
    with tempfile.TemporaryDirectory(prefix="fdaudit-") as folder, torch_defaults_kept(name):
        with during(name, "a rehearsal"):
            cls = with_messages(cls, config, common(task=learned), len(SIZES))
        subject = _ProtocolUnderTest(Path(folder), name, cls, config, learned)
        whole = subject.run("whole")
        _check_rounds(subject, whole)
        _check_networks(subject, whole)
        check_messages(name, cls, config, whole)
        _check_untouched(subject, whole)
        _check_repeats(subject, whole)
        _check_one_round(subject)
        _check_resume(subject)
        _check_released(subject, whole)
        _check_silence(subject)
        _check_withheld(subject, whole)
        _check_absent_class(subject)
        check_dependence(name, cls, config, learned, subject.run, whole)
        if subject.cls.card.heterogeneous:
            _check_networks(subject, subject.run("unlike", unlike=True), unlike=True)
        if has_cuda(subject.name):
            _check_complete(subject, subject.run("cuda", device="cuda"), "on CUDA")


def _short(name: str, cls: type[FederatedProtocol], params: Mapping[str, Any]) -> ProtocolConfig:
    """Return settings of three rounds, where the protocol has that setting and accepts it."""
    if "rounds" in cls.Config.model_fields and "rounds" not in params:
        try:
            return validate(cls.Config, {**params, "rounds": _ROUNDS})
        except SpecError:
            pass
    return cast("ProtocolConfig", read_settings(name, cls.Config, params))


@dataclass(frozen=True)
class _ProtocolUnderTest:
    """A protocol that is subject."""

    folder: Path
    name: str
    cls: type[FederatedProtocol]
    config: ProtocolConfig
    task: Task

    def run(self, label: str, unlike: bool = False, device: str = "cpu", **options: Any) -> ProtocolRun:
        """Run it under a label, which names the run in errors; `options` are those of `run_protocol`."""
        shared = common(unlike, self.task, device)
        options.setdefault("clients", records_of(self.task))
        with during(self.name, f"the run '{label}'"):
            return run_protocol(self.folder / label, self.cls, self.config, shared=shared, **options)


def _same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


def _check_untouched(subject: _ProtocolUnderTest, run: ProtocolRun) -> None:
    """What was delivered or given is never changed."""
    for delivery, copy in run.delivered:
        if not _same(delivery, copy):
            fail(subject.name, "changes tensors that the wire delivered; clone them first.")
    for k, data in records_of(subject.task).items():
        if not (torch.equal(run.clients[k].x, data.x) and torch.equal(run.clients[k].y, data.y)):
            fail(subject.name, f"changes the records of {k}; clone them first.")
    shared = common(task=subject.task)
    if not torch.equal(run.setting.public, shared.public):
        fail(subject.name, "changes the public samples; clone them first.")
    if shared.public_labels is not None and not torch.equal(run.setting.public_labels, shared.public_labels):
        fail(subject.name, "changes the classes of the public samples; clone them first.")


def _check_rounds(subject: _ProtocolUnderTest, run: ProtocolRun) -> None:
    """Every round yields models, losses and the truth behind its messages."""
    name = subject.name
    _check_complete(subject, run, "in an undisturbed run")
    for entry in run.rounds:
        if not entry.models or not set(entry.models) <= set(run.parties):
            fail(name, f"yields no model of a party in round {entry.index}.")
        if not all(math.isfinite(loss) for loss in entry.losses.values()):
            fail(name, f"yields a loss that is not finite in round {entry.index}.")
        for seq, batch in entry.batches.items():
            message = run.messages[seq]
            size = sum(SIZES) if subject.cls.card.pools_data else len(run.clients[message.sender])
            right = message.round == entry.index and role(message.sender) == "client"
            if (
                not right
                or batch.dtype != torch.int64
                or not 0 <= int(batch.min()) <= int(batch.max()) < size
            ):
                fail(name, f"yields batches that are no record numbers of the sender of message {seq}.")


def _check_complete(subject: _ProtocolUnderTest, run: ProtocolRun, when: str) -> None:
    """Every round is there, and every model is finite."""
    indices = [entry.index for entry in run.rounds]
    if indices != list(range(subject.config.rounds)):
        fail(subject.name, f"yields rounds {indices} of {subject.config.rounds} {when}.")
    for entry in run.rounds:
        for party, model in entry.models.items():
            if not all(bool(t.isfinite().all()) for t in model.values()):
                fail(subject.name, f"has a model of {party} that is not finite {when}.")


def _check_repeats(subject: _ProtocolUnderTest, whole: ProtocolRun) -> None:
    """The seed decides everything, and global randomness is neither used nor moved."""
    with global_seed(subject.name, 1):
        again = subject.run("again")
    if (again.log, again.states) != (whole.log, whole.states):
        fail(subject.name, "gives another run for the same seed; draw from child(seed, …) alone.")
    if subject.run("another-seed", seed=6).states[-1] == whole.states[-1]:
        fail(subject.name, "gives the same run for another seed; draw from child(seed, …).")


def _check_one_round(subject: _ProtocolUnderTest) -> None:
    """A run of one round ends, where the protocol accepts that number."""
    if "rounds" not in subject.cls.Config.model_fields:
        return
    try:
        config = validate(subject.cls.Config, {**subject.config.model_dump(mode="json"), "rounds": 1})
    except SpecError:
        return
    shortest = replace(subject, config=config)
    _check_complete(shortest, shortest.run("one-round"), "in a run of one round")


def _check_resume(subject: _ProtocolUnderTest) -> None:
    """A run that is resumed after any round ends bit for bit the same."""
    # What a resumed run draws then shows in every message.
    gaussian = defenses.REGISTRY.load("gaussian-noise")
    defence = gaussian(validate(gaussian.Config, {"sigma": 0.01, "clip": 1.0}))
    noise: dict[tuple[str, str], list[Any]] = {}
    for message in subject.cls.card.declared_messages:
        if message["kind"] != "sample_count":
            noise[message["kind"], message["from"]] = [defence]
    whole = subject.run("noised", defenses=noise)
    for last in range(subject.config.rounds - 1):
        part = subject.run(f"stopped-after-{last}", defenses=noise, stop_after=last)
        following = (last + 1, part.states[-1], part.positions[-1])
        shutil.copytree(part.folder, subject.folder / f"resumed-after-{last}")
        rest = subject.run(f"resumed-after-{last}", defenses=noise, resume=following)
        models, expected = _encoded_models(rest.rounds), _encoded_models(whole.rounds[last + 1 :])
        if part.states[-1] != whole.states[last] or rest.states[-1:] != whole.states[-1:]:
            fail(subject.name, f"ends with another state when it is resumed after round {last}.")
        if rest.log != whole.log or models != expected:
            problem = f"sends other messages when it is resumed after round {last}"
            fail(subject.name, f"{problem}; keep every value that outlives a round in `state`.")


def _encoded_models(rounds: Sequence[Round]) -> list[list[bytes]]:
    """Return the models of each round, as bytes."""
    models: list[list[bytes]] = []
    for entry in rounds:
        of_round = map(encode, entry.models.values())
        models.append(list(of_round))
    return models


def _check_released(subject: _ProtocolUnderTest, run: ProtocolRun) -> None:
    """What is released is what was published, and can be had from the state."""
    names = run.setting.initial["server"].keys() if "server" in run.setting.initial else ()
    for message in reversed(run.messages):
        if "world" in message.receivers and message.tensors.keys() == names:
            break
    else:
        return
    published = run.tensors(message)
    shutil.copytree(run.folder, subject.folder / "restored")
    end = (subject.config.rounds, run.states[-1], run.positions[-1])
    restored = subject.run("restored", resume=end)
    for protocol, when in ((run.protocol, "after a run"), (restored.protocol, "from the state of a run")):
        released = protocol.released()
        if released is None or not _same(decode(encode(released)), published):
            fail(subject.name, f"released() {when} is not the model that was published last.")


def _check_silence(subject: _ProtocolUnderTest) -> None:
    """A round is completed without the clients that go silent, and their silence is on record."""
    last = subject.config.rounds - 1
    for after, when in ((0, "from the start"), (1, "after a message")):
        outage = Outage(party=_GONE, first=0, last=last, after=after)
        run = subject.run(f"{_GONE.replace('/', '-')}-silent-{after}", outages=[outage])
        _check_complete(subject, run, f"if a client is silent {when} of each round")
        for number in range(subject.config.rounds):
            count = 0
            for message in run.messages:
                if (message.round, message.sender) == (number, _GONE) and message.kind != "silence":
                    count += 1
            if count > after:
                fail(subject.name, f"sends for a client that is silent {when} of each round.")
    everybody = [Outage(party=k, first=0, last=last) for k in records_of(subject.task)]
    _check_complete(subject, subject.run("all-silent", outages=everybody), "if every client is silent")


def _check_withheld(subject: _ProtocolUnderTest, whole: ProtocolRun) -> None:
    """The kinds that the card calls withholdable can be withheld."""
    for kind in subject.cls.card.withholdable:
        run = subject.run(f"without-{kind.replace('/', '-')}", withheld=(kind,))
        _check_complete(subject, run, f"if {kind} is withheld")
        if kind not in {m["kind"] for m in subject.cls.card.declared_messages}:
            fail(subject.name, f"calls {kind} withholdable, which its card does not declare.")


def _check_absent_class(subject: _ProtocolUnderTest) -> None:
    """A class that no client holds does no harm."""
    clients: dict[str, PartyData] = {}
    for party, data in records_of(subject.task).items():
        clients[party] = PartyData(data.x, data.y % (CLASSES - 1))
    run = subject.run("absent-class", clients=clients)
    _check_complete(subject, run, "if no client holds one of the classes")
    for message in run.messages:
        if not all(bool(t.double().isfinite().all()) for t in run.tensors(message).values()):
            fail(
                subject.name,
                f"sends {message.kind} that is not finite if no client holds one of the classes.",
            )


def _check_networks(subject: _ProtocolUnderTest, run: ProtocolRun, unlike: bool = False) -> None:
    """Every model is of its party's own network."""
    starts = common(unlike, subject.task).networks.initial(run.parties[:-1], run.setting.seed)
    for entry in run.rounds:
        for party, model in entry.models.items():
            own = {n: t.shape for n, t in starts[party].items()}
            if {n: t.shape for n, t in model.items()} != own:
                fail(subject.name, f"yields a model of {party} that is not of the network of {party}.")
