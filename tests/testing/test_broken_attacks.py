"""`check_attack` finds an attack that breaks one guarantee, and says which."""

# ruff: noqa: NPY002  # global randomness is one of the defects

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fdaudit.config import Config
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.testing import check_attack
from fdaudit.types import Applicability


class NoSettings(Config):
    """Nothing to set."""


class Brightness:
    """Scores a candidate by its brightness and one draw; a sound attack, if a useless one."""

    card = AttackCard(
        name="tried",
        goal="membership",
        needs=("model_update",),
        assumes=(),
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[Config]] = NoSettings

    def __init__(self, config: Any) -> None:
        self.config = config

    def applicable(self, view: Any, knowledge: Any, task: Any) -> Applicability:
        if not view.select(kind="model_update"):
            return Applicability(False, "no update in view")
        return Applicability(True)

    def run(self, view: Any, knowledge: Any, task: Any, generator: torch.Generator) -> Any:
        shift = torch.rand((), generator=generator)
        return tuple(
            Membership(target=k, scores=self.scores(c, view) + shift) for k, c in task.challenges.items()
        )

    def scores(self, challenge: Any, view: Any) -> torch.Tensor:
        return challenge.x.mean((1, 2, 3))


class Broken:
    """A class for each defect. In a class they have no place in the module, so that they share a card."""

    class TorchRandomness(Brightness):
        def scores(self, challenge, view):
            return torch.rand(len(challenge.y))

    class NumpyRandomness(Brightness):
        def scores(self, challenge, view):
            return super().scores(challenge, view) + np.random.rand()

    class Unseeded(Brightness):
        def scores(self, challenge, view):
            return torch.rand(len(challenge.y), generator=torch.Generator().manual_seed(id(challenge)))

    class ReadsTheTruth(Brightness):
        def scores(self, challenge, view):
            (view.directory.parent / "vault" / "truth.json").read_bytes()
            return super().scores(challenge, view)

    class ListsTheRun(Brightness):
        def scores(self, challenge, view):
            list(Path(view.directory).parent.iterdir())
            return super().scores(challenge, view)

    class ChangesTheChallenge(Brightness):
        def scores(self, challenge, view):
            return challenge.x.mul_(2).mean((1, 2, 3))

    class AnotherGoal(Brightness):
        def run(self, view, knowledge, task, generator):
            return [LabelDistribution(target=k, distribution=torch.ones(10) / 10) for k in task.targets]

    class NoGuess(Brightness):
        def run(self, view, knowledge, task, generator):
            return ()

    class NoList(Brightness):
        def run(self, view, knowledge, task, generator):
            return None

    class AnotherVictim(Brightness):
        def run(self, view, knowledge, task, generator):
            return [
                replace(guess, target="client/7") for guess in super().run(view, knowledge, task, generator)
            ]

    class NotFinite(Brightness):
        def scores(self, challenge, view):
            return super().scores(challenge, view) / 0

    class TooFewScores(Brightness):
        def scores(self, challenge, view):
            return super().scores(challenge, view)[:-1]

    class AppliesToAll(Brightness):
        def applicable(self, view, knowledge, task):
            return Applicability(True)

    class AppliesToNone(Brightness):
        def applicable(self, view, knowledge, task):
            return Applicability(False, "never")

    class AppliesAndFails(Brightness):
        def scores(self, challenge, view):
            raise KeyError("no such tensor")

    class NoAnswer(Brightness):
        def applicable(self, view, knowledge, task):
            return bool(view.messages)

    class FailsToSay(Brightness):
        def applicable(self, view, knowledge, task):
            view.select(kind="model_update")[0]
            return Applicability(True)

    class AsksTooEarly(Brightness):
        card = replace(Brightness.card, needs=("oracle (soft labels)",), oracle="soft")

        def applicable(self, view, knowledge, task):
            if task.oracle is None:
                return Applicability(False, "no oracle")
            task.oracle._spent += 1
            return Applicability(True)

    class AsksTooMuch(Brightness):
        card = replace(Brightness.card, needs=("oracle (soft labels)",), oracle="soft")

        def applicable(self, view, knowledge, task):
            return Applicability(task.oracle is not None, "no oracle")

        def run(self, view, knowledge, task, generator):
            x = next(iter(task.challenges.values())).x
            for _ in range(task.oracle.budget + 1):
                task.oracle.query(x)

    class DrawsToSay(Brightness):
        def applicable(self, view, knowledge, task):
            torch.rand(())
            return super().applicable(view, knowledge, task)

    class FirstVictimOnly(Brightness):
        def run(self, view, knowledge, task, generator):
            return super().run(view, knowledge, task, generator)[:1]

    class AnswersTwice(Brightness):
        def run(self, view, knowledge, task, generator):
            return super().run(view, knowledge, task, generator) * 2

    class WritesToItsView(Brightness):
        def scores(self, challenge, view):
            (view.directory / "cache").write_bytes(b"1")
            return super().scores(challenge, view)

    class ChangesItsRecords(Brightness):
        def scores(self, challenge, view):
            for x, _ in view.own_data.values():
                x.zero_()
            return super().scores(challenge, view)

    class ChangesTheSettings(Brightness):
        def scores(self, challenge, view):
            view.hyperparameters["rounds"] = 99
            return super().scores(challenge, view)

    class OnAnotherDevice(Brightness):
        def scores(self, challenge, view):
            return super().scores(challenge, view).to("meta")

    class TakesSinglePrecisionForGranted(Brightness):
        def scores(self, challenge, view):
            for tensor in view.select(kind="model_update")[0].tensors.values():
                if tensor.dtype != "F32":
                    raise TypeError(tensor.dtype)
            return super().scores(challenge, view)

    class ChangesTheDefaultType(Brightness):
        def applicable(self, view, knowledge, task):
            torch.set_default_dtype(torch.float64)
            return super().applicable(view, knowledge, task)

    class WrongProfile(Brightness):
        card = replace(Brightness.card, profiles={"quick": {}, "standard": {}, "full": {"steps": 1}})


DEFECTS = {
    "TorchRandomness": "draws from a global generator|other guesses in a second run",
    "NumpyRandomness": "draws from a global generator|other guesses in a second run",
    "Unseeded": "other guesses in a second run",
    "ReadsTheTruth": "opens .*/vault/truth.json, which is neither its view",
    "ListsTheRun": "which is neither its view nor its knowledge",
    "ChangesTheChallenge": "changes its knowledge or its task",
    "AnotherGoal": "returns a LabelDistribution, which is not about membership",
    "NoGuess": "says that it applies, and returns no guess",
    "NoList": "handing over its guesses ends with TypeError",
    "AnotherVictim": "the check of its guesses ends with ValueError: .*client/7",
    "NotFinite": "the check of its guesses ends with ValueError",
    "TooFewScores": "the check of its guesses ends with ValueError",
    "AppliesToAll": "says that it applies to a view without any message",
    "AppliesToNone": "applies to none of the example federations",
    "AppliesAndFails": r"run\(\) on the view of server ends with KeyError",
    "NoAnswer": "returns no Applicability",
    "FailsToSay": r"applicable\(\) for server ends with IndexError",
    "AsksTooEarly": "asks the oracle in `applicable`",
    "AsksTooMuch": "ends with BudgetExceededError",
    "DrawsToSay": "draws from a global generator",
    "FirstVictimOnly": "the check of its guesses ends with ValueError",
    "AnswersTwice": "the check of its guesses ends with ValueError",
    "WritesToItsView": "writes to the files of its view",
    "ChangesItsRecords": "changes the records or the settings in its view",
    "ChangesTheSettings": "changes the records or the settings in its view",
    "OnAnotherDevice": "handing over its guesses ends with NotImplementedError",
    "TakesSinglePrecisionForGranted": r"ends with TypeError: F16 \(with messages recorded as float16\)",
    "ChangesTheDefaultType": "changes PyTorch's default number type",
    "WrongProfile": "profile full: give other params .*steps",
}


def test_the_sound_attack_passes() -> None:
    check_attack(Brightness)


def test_every_defect_is_listed() -> None:
    assert [name for name in vars(Broken) if not name.startswith("_")] == list(DEFECTS)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str, small: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=DEFECTS[name]) as caught:
        check_attack(getattr(Broken, name), spec=small)
    assert str(caught.value).startswith("tried")


@pytest.fixture
def small() -> dict[str, Any]:
    """A federation that is run once."""
    from fdaudit.testing import small_spec

    return small_spec(
        adversaries=["server", "client/1", "world"], victims=2, protocol__params__upload="model_update"
    )


def test_an_order_that_matters_is_found_where_it_is_said_not_to(small: dict[str, Any]) -> None:
    class ByPlace(Brightness):
        def scores(self, challenge, view):
            return torch.arange(len(challenge.y)).float()

    check_attack(ByPlace, spec=small)
    check_attack(Brightness, spec=small, any_order=True)
    with pytest.raises(AssertionError, match="another order"):
        check_attack(ByPlace, spec=small, any_order=True)


def test_a_module_that_imports_what_holds_truth_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[2] / "examples" / "extras" / "fdaudit_extras" / "confidence.py"
    text = source.read_text(encoding="utf-8")
    (tmp_path / "reaching.py").write_text(
        text + "\nfrom fdaudit.storage.vault import Vault\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AssertionError, match=r"confidence: imports fdaudit\.storage\.vault"):
        check_attack("import:reaching:Confidence")
    sys.modules.pop("reaching")
