"""`check_defense` finds a defence that breaks one guarantee, and says which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from fdaudit.defenses.checks import SameBroadcast
from fdaudit.defenses.dp_sgd import DPSGD
from pydantic import Field

from fdaudit.config import Config
from fdaudit.events import Gaussian
from fdaudit.registry import DefenseCard
from fdaudit.testing import check_defense
from fdaudit.transcript.wire import Released


class NoiseConfig(Config):
    """Settings of the defence."""

    sigma: float = Field(1.0, gt=0)
    clip: float = Field(1.0, gt=0)


class Noise:
    """Clips values to a norm and adds Gaussian noise, in parts that a broken defence replaces."""

    card = DefenseCard(name="tried", source="a test", protects="a message", fixed_size=True)
    Config: ClassVar[type[Config]] = NoiseConfig

    def __init__(self, config: Any) -> None:
        self.config = config

    def describe(self) -> dict[str, Any]:
        return {"name": "tried", **self.config.model_dump()}

    def release(self, kind: str, tensors: Any, noise: Any) -> Released:
        sent = dict(tensors)
        for name in sorted(sent):
            if name != "index":
                sent[name] = self.noised(self.clipped(sent[name].double()), noise).to(sent[name].dtype)
        return Released(kind=kind, tensors=sent, event=self.event())

    def clipped(self, values: torch.Tensor) -> torch.Tensor:
        return values * min(1.0, self.config.clip / max(float(values.norm()), 1e-9))

    def noised(self, values: torch.Tensor, noise: Any) -> torch.Tensor:
        return values + torch.as_tensor(noise.normal(*values.shape)) * self.config.sigma

    def event(self) -> Any:
        return Gaussian(
            sensitivity=2 * self.config.clip,
            scale=self.config.sigma,
            unit="client",
            relation="replace-one",
            covers=("data", "messages"),
        )


class Broken:
    """A class for each defect. In a class they have no place in the module, so that they share a card."""

    class TorchRandomness(Noise):
        def noised(self, values, noise):
            return values + torch.randn(values.shape)

    class CountsCalls(Noise):
        calls = 0

        def noised(self, values, noise):
            self.calls += 1
            return values + self.calls

    class NoEvent(Noise):
        def event(self):
            return None

    class EventOfNoRecord(Noise):
        def event(self):
            return "a promise"

    class NoClip(Noise):
        def clipped(self, values):
            return values

    class ClipsByTheData(Noise):
        def clipped(self, values):
            return values * min(1.0, float(values.abs().max()) / float(values.norm()))

    class ChangesWhatItIsGiven(Noise):
        def release(self, kind, tensors, noise):
            tensors["values"].mul_(2)
            return super().release(kind, tensors, noise)

    class AnotherShape(Noise):
        def noised(self, values, noise):
            return super().noised(values, noise).flatten()

    class AnotherType(Noise):
        def release(self, kind, tensors, noise):
            return super().release(
                kind, {n: t.float() if n != "index" else t for n, t in tensors.items()}, noise
            )

    class AnotherIndex(Noise):
        def release(self, kind, tensors, noise):
            return super().release(kind, {**tensors, "index": tensors["index"] + 1}, noise)

    class AnotherKind(Noise):
        def release(self, kind, tensors, noise):
            return replace(super().release(kind, tensors, noise), kind="soft_labels")

    class NotFinite(Noise):
        def noised(self, values, noise):
            return values / 0

    class SizeByValues(Noise):
        def release(self, kind, tensors, noise):
            return replace(
                super().release(kind, tensors, noise), bytes_on_wire=int(tensors["values"].abs().max())
            )

    class SaysAnotherName(Noise):
        def describe(self):
            return {"name": "other", **self.config.model_dump()}

    class HidesASetting(Noise):
        def describe(self):
            return {"name": "tried", "sigma": self.config.sigma}

    class Fails(Noise):
        def release(self, kind, tensors, noise):
            if tensors["values"].dtype is torch.float16:
                raise RuntimeError("no half precision")
            return super().release(kind, tensors, noise)


DEFECTS = {
    "TorchRandomness": "draws from a global generator",
    "CountsCalls": "other values for the same noise",
    "NoEvent": "releases a message without an event",
    "EventOfNoRecord": "writing its event on record ends with",
    "NoClip": "states a sensitivity of 2, and two of its messages differ by",
    "ClipsByTheData": "states a sensitivity of 2, and two of its messages differ by",
    "ChangesWhatItIsGiven": "changes the tensors that it is given",
    "AnotherShape": "in another shape",
    "AnotherType": "as torch.float32 where torch.float64 was given",
    "AnotherIndex": "changes `index`",
    "AnotherKind": "makes soft_labels of logits",
    "NotFinite": "not finite",
    "SizeByValues": "different sizes for other values",
    "SaysAnotherName": "describes itself as",
    "HidesASetting": "describes itself as",
    "Fails": "release of logits ends with RuntimeError",
}


def test_the_sound_defence_passes() -> None:
    check_defense(Noise)


def test_every_defect_is_listed() -> None:
    assert [name for name in vars(Broken) if not name.startswith("_")] == list(DEFECTS)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match=DEFECTS[name]) as caught:
        check_defense(getattr(Broken, name))
    assert str(caught.value).startswith("tried: ")


def test_an_identity_that_is_none_is_found() -> None:
    with pytest.raises(AssertionError, match="where it should change nothing"):
        check_defense("temperature", {"temperature": 2.0}, identity={"temperature": 3.0})


def test_params_and_kinds_that_do_not_fit_are_named() -> None:
    with pytest.raises(AssertionError, match=r"give other params .*temperature: None is missing"):
        check_defense("temperature")
    with pytest.raises(AssertionError, match="refuses messages of model_update"):
        check_defense("temperature", {"temperature": 2.0}, kind="model_update")


class BrokenChecks:
    """Checks on receipt with a defect each."""

    class RefusesAll(SameBroadcast):
        def refuses(self, copies):
            return list(copies)

    class RefusesAStranger(SameBroadcast):
        def refuses(self, copies):
            return ["client/7"]

    class Draws(SameBroadcast):
        def refuses(self, copies):
            torch.rand(())
            return ()

    class Changes(SameBroadcast):
        def refuses(self, copies):
            next(iter(copies["client/0"].values())).zero_()
            return ()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("RefusesAll", "refuses an undisturbed model_parameters"),
        ("RefusesAStranger", "other receivers than those"),
        ("Draws", "draws from a global generator"),
        ("Changes", "changes the messages that it checks"),
    ],
)
def test_a_defect_of_a_check_on_receipt_is_found(name: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_defense(getattr(BrokenChecks, name))


class BrokenTraining:
    """Defences in training with a defect each."""

    class NoClip(DPSGD):
        def clipped(self, per_sample):
            return {n: t.double().sum(0) for n, t in per_sample.items()}

    class NoEvent(DPSGD):
        def event(self, steps):
            return None

    class GlobalDraws(DPSGD):
        def draw(self, records, noise):
            return torch.randperm(records)[:3]

    class DrawsNobody(DPSGD):
        def draw(self, records, noise):
            return torch.tensor([records])

    class Changes(DPSGD):
        def clipped(self, per_sample):
            per_sample["w"].zero_()
            return super().clipped(per_sample)

    class AnotherShape(DPSGD):
        def noised(self, total, noise):
            return {n: t.flatten() for n, t in super().noised(total, noise).items()}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NoClip", "has a clip of 1, and one record's gradient has a norm of"),
        ("NoEvent", "event"),
        ("GlobalDraws", "draws from a global generator"),
        ("DrawsNobody", "draws numbers that no record has"),
        ("Changes", "changes the gradients that it is given"),
        ("AnotherShape", "another shape than the parameter's"),
    ],
)
def test_a_defect_of_a_defence_in_training_is_found(name: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_defense(
            getattr(BrokenTraining, name), {"noise_multiplier": 1.0, "clip": 1.0, "sample_rate": 0.5}
        )
