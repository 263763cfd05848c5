"""Score copies of models: compare answers on test records of the copy, the model and a baseline that saw no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fdaudit.goals.model_extraction import GOAL, Extraction
from fdaudit.handout.auxiliary import Assumption
from fdaudit.metrics import mean_and_worst, score_extraction
from fdaudit.result import Target
from fdaudit.rng import child
from fdaudit.scoring.evidence import draws_of
from fdaudit.scoring.goals.scorer import CheckedTask, GoalScorer, Scores, ScoringInputs
from fdaudit.scoring.goals.submission import FileName, Reader, Submission, Text
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches, parameters_of
from fdaudit.types import Figure

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["CopyScorer", "ExtractionGuess", "auxiliary_model", "check_copy", "scored"]

_STEPS = 200
"""Steps of the model that is fitted to auxiliary records."""


_REMEDY = "Write the copy's weights as float32 tensors, one a parameter of the network, beside the guesses."


class ExtractionGuess(Submission):
    """A copy of a victim's model."""

    explained: ClassVar[str] = "One for each victim, or for some."
    file: ClassVar[str] = "parameters"

    target: Text
    """The victim, or `server` for the released model."""
    parameters: FileName
    """A safetensors file in the same folder: the weights of the network that the card names, by parameter."""

    def guess(self, read: Reader, field: str, shape: tuple[int, ...]) -> Extraction:
        """Return the weights of the file."""
        copy = read(self.parameters, f"{field}.parameters", _REMEDY)
        return Extraction(target=self.target, parameters=copy)


class CopyScorer(GoalScorer[Extraction]):
    """Scores copies of one run's models."""

    goal = GOAL
    submission = ExtractionGuess

    def __init__(self, inputs: ScoringInputs) -> None:
        super().__init__(inputs)
        self._baseline: Parameters | None = None

    @classmethod
    def check(cls, guesses: Sequence[Extraction], asked: CheckedTask) -> None:
        """Refuse nothing: `score` compares each copy with the federation's network, which no view holds."""

    def scorable(self, guess: Extraction) -> bool:
        """Return whether the copied model is on record; a recording may lack a client's own."""
        return self.case.origin != "recording" or self.inputs.answering.knows(guess.target)

    def score(self, cell: str, guesses: Sequence[Extraction], assumed: Sequence[Assumption] = ()) -> Scores:
        """Return the figures over all copied models, and each model's own.

        Raises:
            ValueError: a copy has other parameters than the federation's network, or one that is not finite.
        """
        case, (x, y) = self.case, self.case.test
        if self._baseline is None:
            self._baseline = auxiliary_model(case, case.auxiliary, child(case.seed, "extraction", "baseline"))
        trainer = case.trainer()
        without = trainer.predict(self._baseline, x).argmax(1)
        by_target = dict[str, Mapping[str, Figure]]()
        for guess in guesses:
            if guess.target in by_target:
                raise ValueError(f"{guess.target}: the attack gave more than one copy. Give one a model")
            check_copy(guess, self._baseline)
            model = self.inputs.answering.predictions(guess.target, x)
            copied = trainer.predict(dict(guess.parameters), x).argmax(1)
            by_target[guess.target] = score_extraction(copied, model.argmax(1), without, y)
        targets = []
        for name, figures in by_target.items():
            targets.append(Target(target=name, figures=tuple(figures.values())))
        return scored(by_target, case), tuple(targets)


def scored(by_target: Mapping[str, Mapping[str, Figure]], case: Case) -> tuple[Figure, ...]:
    """Return each figure's mean over the models, and the worst model's.

    The gain's mean has a p-value of its own: the least of the models', times their number (Bonferroni).
    """
    over_models = []
    for name in next(iter(by_target.values())):
        figures, p_values = dict[str, Figure](), list[float]()
        for target, by_name in by_target.items():
            figure = figures[target] = by_name[name]
            if figure.p is not None:
                p_values.append(figure.p)
        mean, worst = mean_and_worst(figures, draws_of(case.seed, name, list(by_target)))
        p = None
        if p_values:
            p = min(1.0, len(p_values) * min(p_values))
        over_models += [replace(mean, p=p), worst]
    return tuple(over_models)


def check_copy(guess: Extraction, network: Parameters) -> None:
    """Refuse a copy that is not a set of weights for the federation's network.

    Raises:
        ValueError: a name is missing or unknown, or a tensor has another shape or a number that is not finite.
    """
    if set(guess.parameters) != set(network):
        odd = sorted(set(guess.parameters) ^ set(network))[0]
        raise ValueError(f"{guess.target}: its copy and the federation's network differ in {odd[:80]!r}")
    for name, tensor in guess.parameters.items():
        if tensor.shape != network[name].shape or not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{guess.target}: {name} needs finite numbers of shape {tuple(network[name].shape)}"
            )


def auxiliary_model(case: Case, auxiliary: tuple[Tensor, Tensor], generator: torch.Generator) -> Parameters:
    """Return the federation's network fitted to auxiliary records alone, from the public initial weights if any."""
    initial = case.initial_seed
    weights = generator if initial is None else torch.Generator().manual_seed(initial)
    start, (x, y) = parameters_of(case.architecture.build(weights)), auxiliary
    batches = draw_batches(len(y), 64, steps=_STEPS, generator=generator)
    job = Job(party="baseline", parameters=start, x=x, targets=y, batches=batches)
    (fitted,) = case.trainer().fit([job], Fit(lr=3e-3, final_lr=3e-5, optimizer="adam"))
    return fitted.parameters
