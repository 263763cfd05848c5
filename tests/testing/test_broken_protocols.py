"""`check_protocol` finds a protocol that breaks one guarantee, and says which."""

# ruff: noqa: NPY002  # global randomness is one of the defects

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fdaudit.config import Config
from fdaudit.federation.kit import (
    DATA,
    Computed,
    LocalTraining,
    Round,
    SimpleProtocol,
    SimpleProtocolCard,
    mean,
)
from fdaudit.testing import check_protocol

SHORT = {"rounds": 2, "local_steps": 1, "batch_size": 4}
MODELS = (
    {"kind": "model_parameters", "from": "server", "to": "client", "what": "the model"},
    {"kind": "model_parameters", "from": "client", "to": "server", "what": "a trained model"},
    {"kind": "model_parameters", "from": "server", "to": "client, world", "what": "the last model"},
)


def card(*messages: dict[str, Any], **changes: Any) -> SimpleProtocolCard:
    return replace(Average.card, messages=(*MODELS, *messages), **changes)


def sends(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "from": "client", "to": "server", "what": "one more", **more}


class Average(SimpleProtocol):
    """Federated averaging, in parts that a broken protocol replaces."""

    card = SimpleProtocolCard(name="tried", source="a test", messages=MODELS)

    def round(self, t: int) -> None:
        start = self.begin(t)
        fitted = {k: self.changed(k, w) for k, w in self.fit(t, start).items()}
        for k in fitted:
            self.extra(t, k)
        self.model = self.averaged(
            t, [self.send(k, ["server"], "model_parameters", w) for k, w in fitted.items()]
        )
        if t == self.last:
            self.send("server", [*self.clients, "world"], "model_parameters", self.model)

    def begin(self, t: int) -> Any:
        return self.send("server", self.clients, "model_parameters", self.model)

    def changed(self, k: str, w: Computed) -> Computed:
        return w

    def extra(self, t: int, k: str) -> None:
        pass

    def averaged(self, t: int, sent: list[Any]) -> Computed:
        return mean(sent, otherwise=self.model)


def added(w: Computed, number: float) -> Computed:
    """The same tensors with a number added, of the same basis."""
    return Computed({n: t + number for n, t in w.items()}, w.basis, w.batch)


class Broken:
    """A class for each defect. In a class they have no place in the module, so that they share a card."""

    class TorchRandomness(Average):
        def changed(self, k, w):
            return added(w, float(torch.rand(())))

    class NumpyRandomness(Average):
        def changed(self, k, w):
            np.random.rand()
            return w

    class PythonRandomness(Average):
        def changed(self, k, w):
            return added(w, random.random())

    class IgnoresTheSeed(Average):
        def round(self, t):
            self.model = {n: torch.zeros_like(w) for n, w in self.model.items()}

    class KeepsItsStateElsewhere(Average):
        calls = 0

        def averaged(self, t, sent):
            self.calls += 1
            return added(super().averaged(t, sent), self.calls)

    class UndeclaredKind(Average):
        def extra(self, t, k):
            self.send(k, ["server"], "sample_count", Computed({"n": torch.tensor(3)}, (DATA,)))

    class UndeclaredReceiver(Average):
        def extra(self, t, k):
            self.send(k, ["world"], "model_parameters", self.model)

    class AnotherForm(Average):
        card = card(sends("class_counts"))

        def extra(self, t, k):
            self.send(k, ["server"], "class_counts", {"counts": torch.ones(2, dtype=torch.int64)})

    class CountsThatAreNotWhole(Average):
        card = card(sends("class_counts"))

        def extra(self, t, k):
            self.send(k, ["server"], "class_counts", {"counts": torch.ones(3)})

    class SizeByData(Average):
        card = card(sends("private_labels"))

        def extra(self, t, k):
            y = self.setting.clients[k].y
            self.send(k, ["server"], "private_labels", {"values": y[: 1 + int(y[0])]})

    class IndexByData(Average):
        card = card(sends("soft_labels", index="public"))

        def extra(self, t, k):
            rows = self.setting.clients[k].x.mean((1, 2, 3)).argsort()[:3]
            self.send(k, ["server"], "soft_labels", {"index": rows, "values": torch.ones(3, 3) / 3})

    class MessagesByData(Average):
        def begin(self, t):
            for k in self.clients[: int(self.setting.clients["client/1"].y[0])]:
                self.send("server", [k], "model_parameters", self.model)
            return super().begin(t)

    class ReadsAnotherClient(Average):
        def changed(self, k, w):
            other = self.setting.clients["client/1"]
            return added(w, float(other.x.mean())) if k == "client/0" else w

    class ReadsSilentRecords(Average):
        def averaged(self, t, sent):
            leak = float(self.setting.clients["client/1"].x.mean())
            return {n: w + leak for n, w in super().averaged(t, sent).items()}

    class HidesItsData(Average):
        def changed(self, k, w):
            return Computed(w, tuple(one for one in w.basis if one != DATA), w.batch)

    class DeclaresWhatItDoesNotHold(Average):
        def changed(self, k, w):
            others = (1,) if k == "client/1" else ()
            return Computed(w, (*w.basis, *others), w.batch)

    class ServerWithRecords(Average):
        def averaged(self, t, sent):
            return Computed(super().averaged(t, sent), (DATA,))

    class ChangesADelivery(Average):
        def averaged(self, t, sent):
            found = super().averaged(t, sent)
            for delivery in filter(None, sent):
                next(iter(delivery.values())).add_(1)
            return found

    class ChangesRecords(Average):
        def changed(self, k, w):
            self.setting.clients[k].x.mul_(0.5)
            return w

    class ChangesPublicSamples(Average):
        def begin(self, t):
            self.setting.public.zero_()
            return super().begin(t)

    class ReleasesAnotherModel(Average):
        def released(self):
            return {n: w + 1 for n, w in self.model.items()}

    class NeedsEveryClient(Average):
        def averaged(self, t, sent):
            first = sent[0]
            return Computed({n: torch.stack([m[n] for m in sent]).mean(0) for n in first})

    class NeedsSomeClient(Average):
        def averaged(self, t, sent):
            arrived = [m for m in sent if m is not None]
            return Computed({n: torch.stack([m[n] for m in arrived]).mean(0) for n in self.model})

    class EndsEarly(Average):
        def rounds(self, start):
            yield from (entry for entry in super().rounds(start) if entry.index < self.last)

    class NotFinite(Average):
        def averaged(self, t, sent):
            return added(super().averaged(t, sent), float("inf") if t == self.last else 0.0)

    class BatchesOfNobody(Average):
        def changed(self, k, w):
            return Computed(w, w.basis, w.batch + 1000)

    class NoModel(Average):
        def rounds(self, start):
            for entry in super().rounds(start):
                yield Round(index=entry.index, models={})

    class AnotherNetwork(Average):
        def rounds(self, start):
            for entry in super().rounds(start):
                yield replace(entry, models={"server": {"w": torch.zeros(3)}})

    class LossNotFinite(Average):
        def rounds(self, start):
            for entry in super().rounds(start):
                yield replace(entry, losses={"client/0": float("nan")})

    class NotWithholdable(Average):
        card = card(sends("sample_count"), withholdable=("sample_count",))

        def extra(self, t, k):
            sent = self.send(k, ["server"], "sample_count", Computed({"n": torch.tensor(3)}, (DATA,)))
            if sent is None and t == 0 and len(self.clients) == 3 and self.alive(k):
                raise KeyError("sample_count")

        def alive(self, k):
            return not any(o.party == k for o in self.setting.wire._outages)

    class OneNetwork(Average):
        card = card(heterogeneous=True)

    class AbsentClass(Average):
        card = card(sends("class_prototypes"))

        def extra(self, t, k):
            data = self.setting.clients[k]
            means = [data.x[data.y == c].mean() * torch.ones(3) for c in range(3)]
            self.send(k, ["server"], "class_prototypes", {"values": torch.stack(means)})

    class StrayFile(Average):
        def begin(self, t):
            (self.setting.wire._transcript.directory / "payloads" / "stray").write_bytes(b"1")
            return super().begin(t)

    class ChangesPublicClasses(Average):
        def begin(self, t):
            self.setting.public_labels.zero_()
            return super().begin(t)

    class NeedsTwoRounds(Average):
        def begin(self, t):
            self.share = t / (self.config.rounds - 1)
            return super().begin(t)

    class RowsByNumberOfRecords(Average):
        card = card(sends("logits", index="public"))

        def extra(self, t, k):
            rows = torch.arange(min(7, len(self.setting.clients[k])))
            self.send(k, ["server"], "logits", {"index": rows, "values": torch.zeros(len(rows), 3)})

    class ChangesTheDefaultType(Average):
        def begin(self, t):
            torch.set_default_dtype(torch.float64)
            return super().begin(t)


class Untyped(LocalTraining):
    anything: Any = None


class Open(LocalTraining):
    model_config: ClassVar[Any] = {"extra": "ignore"}


class Mutable(LocalTraining):
    model_config: ClassVar[Any] = {"frozen": False}


DEFECTS = {
    "TorchRandomness": "global generator|another run for the same seed",
    "NumpyRandomness": "draws from a global generator",
    "PythonRandomness": "global generator|another run for the same seed",
    "IgnoresTheSeed": "the same run for another seed",
    "KeepsItsStateElsewhere": "resumed after round 0",
    "UndeclaredKind": "ProtocolError: .*sample_count",
    "UndeclaredReceiver": "from client to world, which its card does not declare",
    "AnotherForm": "is not class_counts",
    "CountsThatAreNotWhole": "counts that are not whole numbers",
    "SizeByData": "whose size depends on private records",
    "IndexByData": "decide the index of soft_labels",
    "MessagesByData": "decide who sends what",
    "ReadsAnotherClient": "depends on the records of client/1 and does not declare it",
    "ReadsSilentRecords": "although that client is silent",
    "HidesItsData": "depends on the records of client/1 and does not declare it",
    "DeclaresWhatItDoesNotHold": "that client/1 did not hold",
    "ServerWithRecords": "ProtocolError|who has none",
    "ChangesADelivery": "changes tensors that the wire delivered",
    "ChangesRecords": "changes the records of client/0",
    "ChangesPublicSamples": "changes the public samples",
    "ReleasesAnotherModel": r"released\(\) after a run is not the model",
    "NeedsEveryClient": "the run 'client-1-silent-0' ends with",
    "NeedsSomeClient": "the run 'all-silent' ends with",
    "EndsEarly": r"yields rounds \[0\] of 2",
    "NotFinite": "not finite",
    "BatchesOfNobody": "no record numbers",
    "NoModel": "yields no model",
    "AnotherNetwork": "a model of server that is not of the network of server",
    "LossNotFinite": "a loss that is not finite",
    "NotWithholdable": "the run 'without-sample_count' ends with KeyError",
    "OneNetwork": "the run 'unlike' ends with|not of the network of",
    "AbsentClass": "class_prototypes that is not finite",
    "StrayFile": "damaged record",
    "ChangesPublicClasses": "changes the classes of the public samples",
    "NeedsTwoRounds": "the run 'one-round' ends with ZeroDivisionError",
    "RowsByNumberOfRecords": "decide the rows of logits",
    "ChangesTheDefaultType": "changes PyTorch's default number type",
}


def test_the_sound_protocol_passes() -> None:
    check_protocol(Average, SHORT)


def test_every_defect_is_listed() -> None:
    assert [name for name in vars(Broken) if not name.startswith("_")] == list(DEFECTS)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match=DEFECTS[name]) as caught:
        check_protocol(getattr(Broken, name), SHORT)
    assert str(caught.value).startswith("tried: ")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Untyped, "accepts any value for the setting anything"),
        (Open, "accepts an unknown setting"),
        (Mutable, "can be changed after their check"),
    ],
)
def test_settings_that_check_nothing_are_found(config: type[Config], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_protocol(type("Tried", (Average,), {"Config": config, "__module__": "elsewhere"}), SHORT)


def test_a_class_that_breaks_its_contract_is_found() -> None:
    class NoCard(Average):
        card = None  # type: ignore[assignment]

    class NoRelease:
        card, Config = Average.card, LocalTraining

        def __init__(self, config, setting):
            pass

        def rounds(self, start):
            pass

    for cls, problem in ((NoCard, "has no card"), (NoRelease, "has no method released")):
        with pytest.raises(AssertionError, match=problem):
            check_protocol(cls, SHORT)
    with pytest.raises(AssertionError, match="is not known"):
        check_protocol("no-such-protocol")
    with pytest.raises(AssertionError, match=r"params .*roundz"):
        check_protocol("fedavg", {"roundz": 1})
