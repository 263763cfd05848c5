"""`check_defense` finds a defence that breaks one guarantee, and says which."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar

import pytest
import torch
from fdaudit.defenses.checks import SameBroadcast
from fdaudit.defenses.dp_sgd import DPSGD
from pydantic import Field

from fdaudit.config import Config
from fdaudit.events import Gaussian, Laplace
from fdaudit.kinds import KINDS, Kind
from fdaudit.registry import DefenseCard
from fdaudit.testing import check_defense, example_message
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

    class NeedsAnIndex(Noise):
        def release(self, kind, tensors, noise):
            return super().release(kind, {**tensors, "index": tensors["index"]}, noise)

    class OtherWithoutIndex(Noise):
        def release(self, kind, tensors, noise):
            extra = {} if "index" in tensors else {"values": torch.zeros_like(tensors["values"])}
            return super().release(kind, {**tensors, **extra}, noise)

    class FirstKindOnly(Noise):
        card = replace(Noise.card, accepts=("logits", "vote_counts"))

        def release(self, kind, tensors, noise):
            return super().release(kind, {**tensors, "values": tensors["values"]}, noise)

    class NegativeSize(Noise):
        def release(self, kind, tensors, noise):
            return replace(super().release(kind, tensors, noise), bytes_on_wire=-3)

    class NoNoise(Noise):
        def noised(self, values, noise):
            return values

    class SameNoiseEachTime(Noise):
        def noised(self, values, noise):
            draws = torch.Generator().manual_seed(0)
            return values + torch.randn(values.shape, generator=draws) * self.config.sigma

    class NoiseOnSomeValues(Noise):
        def noised(self, values, noise):
            return torch.cat([values[:1], super().noised(values[1:], noise)])

    class LessNoiseThanStated(Noise):
        def noised(self, values, noise):
            return values + torch.as_tensor(noise.normal(*values.shape)) * self.config.sigma / 2

    class LessLaplaceNoise(Noise):
        def noised(self, values, noise):
            return values + torch.as_tensor(noise.normal(*values.shape)) * self.config.sigma

        def clipped(self, values):
            return values * min(1.0, self.config.clip / max(float(values.norm(1)), 1e-9))

        def event(self):
            stated = {"sensitivity": 2 * self.config.clip, "scale": self.config.sigma}
            return Laplace(**stated, unit="client", relation="replace-one", covers=("data", "messages"))

    class ChangesTheDefaultType(Noise):
        def release(self, kind, tensors, noise):
            torch.set_default_dtype(torch.float64)
            return super().release(kind, tensors, noise)

    class TurnsGradientsOff(Noise):
        def release(self, kind, tensors, noise):
            torch.set_grad_enabled(False)
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
    "NeedsAnIndex": "release of a message without `index` ends with KeyError",
    "OtherWithoutIndex": "releases another logits without `index`",
    "FirstKindOnly": "release of vote_counts ends with KeyError",
    "NegativeSize": "states -3 bytes",
    "NoNoise": "releases the same for other noise",
    "SameNoiseEachTime": "releases the same for other noise",
    "NoiseOnSomeValues": "sends some values without noise",
    "LessNoiseThanStated": "states noise of standard deviation 1, and its messages spread by 0.[45]",
    "LessLaplaceNoise": "states noise of standard deviation 1.41421, and its messages spread by",
    "ChangesTheDefaultType": "changes PyTorch's default number type",
    "TurnsGradientsOff": "turns gradients on or off",
}


def test_the_sound_defence_passes() -> None:
    check_defense(Noise)


def test_values_may_be_changed_after_the_noise() -> None:
    class Clamped(Noise):
        def noised(self, values, noise):
            return super().noised(values, noise).clamp(0, 0.1)

    check_defense(Clamped)


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.tensors], ids=attrgetter("name"))
def test_an_example_message_has_the_tensors_of_its_kind(kind: Kind) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in example_message(kind.name).items()}
    assert kind.misfit(shapes, {"C": 3, "c": 1, "h": 8, "w": 8}) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_cuda_is_named() -> None:
    with pytest.warns(UserWarning, match=r"tried .* CUDA"):
        check_defense(Noise)


def test_every_defect_is_listed() -> None:
    assert [name for name in vars(Broken) if not name.startswith("_")] == list(DEFECTS)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match=DEFECTS[name]) as caught:
        check_defense(getattr(Broken, name))
    assert str(caught.value).startswith("tried: ")


def test_an_identity_that_is_none_is_found() -> None:
    with pytest.raises(AssertionError, match="change nothing"):
        check_defense("temperature", {"temperature": 2.0}, identity={"temperature": 3.0})


def test_params_and_kinds_that_do_not_fit_are_named() -> None:
    with pytest.raises(AssertionError, match=r"params .*temperature: None"):
        check_defense("temperature")
    with pytest.raises(AssertionError, match="messages of model_update"):
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

    class SameNoiseEachTime(DPSGD):
        def noised(self, total, noise):
            return {n: t / self.expected_batch for n, t in total.items()}

    class LessNoiseThanStated(DPSGD):
        def noised(self, total, noise):
            return {n: t / 2 for n, t in super().noised(total, noise).items()}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("NoClip", "has a clip of 1, and one record's gradient has a norm of"),
        ("NoEvent", "event"),
        ("GlobalDraws", "draws from a global generator"),
        ("DrawsNobody", "draws numbers that no record has"),
        ("Changes", "changes the gradients that it is given"),
        ("AnotherShape", "another shape than the parameter's"),
        ("SameNoiseEachTime", "releases the same for other noise"),
        ("LessNoiseThanStated", "states noise of standard deviation 1, and its messages spread by 0.[45]"),
    ],
)
def test_a_defect_of_a_defence_in_training_is_found(name: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_defense(
            getattr(BrokenTraining, name), {"noise_multiplier": 1.0, "clip": 1.0, "sample_rate": 0.5}
        )
