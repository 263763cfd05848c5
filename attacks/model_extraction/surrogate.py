"""Model extraction: fit a surrogate to all of a model's answers that an adversary holds or can query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.goals.model_extraction import RELEASED, Extraction
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches, parameters_of
from fdaudit.transcript.messages import role
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from ..membership._answers import recorded

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["ExtractionConfig", "ExtractionHard", "ExtractionSoft"]


_OWN = ("model_parameters", "model_update", "gradient")
"""Kinds that contain a model itself."""
_LEAST = 10
"""Smallest number of answers to fit a surrogate."""

Lesson = tuple[Tensor, Tensor]
"""Samples (n, c, h, w) and what a model answered: probabilities (n, C)."""


class ExtractionConfig(Config):
    """Settings of the surrogate."""

    samples: int = Field(20_000, ge=_LEAST)
    """Largest number of one model's recorded samples: those answered last."""
    queries: int = Field(20_000, ge=0)
    """Largest number of samples queried from each model's oracle; its budget may allow fewer."""
    steps: int = Field(800, ge=1)
    """Steps of Adam on the answers."""
    batch_size: int = Field(128, ge=1)
    """Samples a step."""
    lr: float = Field(3e-3, gt=0)
    """Adam's learning rate, annealed to a hundredth of it on a cosine."""


_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"steps": 200, "batch_size": 64, "samples": 4000, "queries": 1000},
    "standard": {},
    "full": {"steps": 4000, "samples": 100_000, "queries": 100_000},
}


@reads_forms
class ExtractionSoft:
    """Fits a copy of a model to its logits or probabilities, recorded in the view or queried from an oracle.

    Answers of all rounds in the view count. If a model answered a sample several times, the last answer counts; noisy
    answers are averaged. An oracle is queried with public samples, auxiliary records and means of two of them. The copy
    starts from the initial weights if the server broadcast them, else from weights of its own. It has the federation's
    architecture, even if a client's own differs.
    """

    card = AttackCard(
        name="extraction-soft",
        work={"once": 4000, "each": 5000, "grows": ("steps",)},
        goal="model-extraction",
        needs=("logits", "soft_labels", "oracle (soft labels)"),
        assumes=("architecture", "auxiliary", "public"),
        oracle="soft",
        source="Tramèr et al. 2016; Orekondy, Schiele & Fritz 2019 (Knockoff Nets)",
        control={"on": "answers"},
        profiles=_PROFILES,
    )
    kinds: ClassVar[tuple[str, ...]] = ("logits", "soft_labels")
    Config: ClassVar[type[ExtractionConfig]] = ExtractionConfig

    def __init__(self, config: ExtractionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a model whose answers are in view or can be queried, and which is not itself in view."""
        if knowledge.architecture is None or knowledge.train is None:
            return Applicability(False, "the architecture is not known, so that no surrogate can be fitted")
        if self._asks(view, task) or self._recorded(view, knowledge, task):
            return Applicability(True)
        bare = _bare(view)
        if set(task.targets) <= bare:
            return Applicability(
                False, "the victims' models themselves are in view: there is nothing to copy"
            )
        reason = f"no {' or '.join(self.kinds)} of a victim in view, and no model to ask"
        return Applicability(False, f"{reason} that is not in view itself" if bare else reason)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Extraction, ...]:
        """Return one `Extraction` for each model that answered."""
        lessons = self._recorded(view, knowledge, task)
        for name, (x, answers) in self._asked(view, knowledge, task, generator).items():
            if name in lessons:
                earlier_x, earlier_answers = lessons[name]
                x, answers = torch.cat([earlier_x, x]), torch.cat([earlier_answers, answers])
            lessons[name] = (x, answers)
        copies = []
        for name, lesson in lessons.items():
            parameters = self._copy(knowledge, lesson)
            copies.append(Extraction(target=name, parameters=parameters, answers=len(lesson[0])))
        return tuple(copies)

    # -- answers ------------------------------------------------------------------------------------------------

    def _recorded(self, view: View, knowledge: Knowledge, task: AttackTask) -> dict[str, Lesson]:
        """Return the recorded answers of each victim whose own model is not in view."""
        bare = _bare(view)
        if set(task.targets) <= bare:
            return {}
        answers = recorded(view, knowledge, self.config.samples, kinds=self.kinds)
        lessons = {}
        for target in task.targets:
            answer = answers.get(target)
            if answer is None or target in bare or len(answer.x) < _LEAST:
                continue
            values = answer.values
            if answer.kind == "logits":
                values = values.softmax(1)
            lessons[target] = (answer.x, values)
        return lessons

    def _asks(self, view: View, task: AttackTask) -> tuple[str, ...]:
        """Return the parties whose models the oracle is queried for: none whose model is in view."""
        if task.oracle is None or task.oracle.answers != self.card.oracle or not self.config.queries:
            return ()
        bare = _bare(view)
        if not task.oracle.models:
            released_in_view = any(role(party) != "client" for party in bare)
            return () if released_in_view else (RELEASED,)
        parties = list[str]()
        for target in task.targets:
            if target in task.oracle.models and target not in bare:
                parties.append(target)
        return tuple(parties)

    def _asked(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> dict[str, Lesson]:
        lessons = dict[str, Lesson]()
        names = self._asks(view, task)
        if task.oracle is None:
            return lessons
        for name in names:
            each = min(self.config.queries, task.oracle.remaining // (len(names) - len(lessons)))
            x = _queries(knowledge, each, generator)
            if not len(x):
                continue
            answers = task.oracle.query(x, name) if task.oracle.models else task.oracle.query(x)
            if answers.ndim == 1:
                answers = F.one_hot(answers.long(), knowledge.classes)
            lessons[name] = (x, answers.float())
        return lessons

    # -- the copy -----------------------------------------------------------------------------------------------

    def _copy(self, knowledge: Knowledge, lesson: Lesson) -> Parameters:
        """Return a copy, from the broadcast initial weights if known; equal answers are fitted once."""
        if knowledge.train is None or knowledge.architecture is None:
            raise ValueError("extraction: no architecture or training core.")
        train, network, config = knowledge.train, knowledge.architecture, self.config
        x, answers = lesson
        start = parameters_of(network.build(torch.Generator().manual_seed(knowledge.initial or 0)))

        def fitted(draws: torch.Generator) -> Parameters:
            batches = draw_batches(len(x), config.batch_size, steps=config.steps, generator=draws)
            job = Job(party="copy", parameters=start, x=x, targets=answers, batches=batches)
            rule = Fit(lr=config.lr, final_lr=config.lr / 100, optimizer="adam", objective="kl")
            return train.fit([job], rule)[0].parameters

        card = {
            "what": "copy of a model",
            "settings": config.model_dump(mode="json"),
            "network": network.described,
            "execution": train.execution.described,
        }
        return computed_once(card, [start, x, answers], fitted)


@reads_forms
class ExtractionHard(ExtractionSoft):
    """Fits a copy of a model to its hard labels, recorded in the view or queried from an oracle.

    It does what `extraction-soft` does, with one class an answer.
    """

    card = AttackCard(
        name="extraction-hard",
        work={"once": 4000, "each": 5000, "grows": ("steps",)},
        needs=("hard_labels", "oracle (hard labels)"),
        oracle="hard",
        source="Tramèr et al. 2016; Jagielski et al. 2020",
        goal="model-extraction",
        assumes=("architecture", "auxiliary", "public"),
        control={"on": "answers"},
        profiles=_PROFILES,
    )
    kinds: ClassVar[tuple[str, ...]] = ("hard_labels",)


def _bare(view: View) -> set[str]:
    """Return the parties whose model, update or gradient is in view with its payload."""
    parties = set[str]()
    for m in with_payload(view.messages):
        if m.kind in _OWN:
            parties.add(m.sender)
    return parties


def _queries(knowledge: Knowledge, count: int, generator: torch.Generator) -> Tensor:
    """Return at most `count` samples (n, c, h, w): public ones, auxiliary ones, then means of two of either."""
    sources = []
    if knowledge.public is not None:
        sources.append(knowledge.public)
    if knowledge.auxiliary is not None:
        sources.append(knowledge.auxiliary[0])
    if not sources:
        if knowledge.architecture is None:
            raise ValueError("extraction: no architecture to draw samples for.")
        return torch.rand(count, *knowledge.architecture.input_shape, generator=generator)
    pool = torch.cat(sources)
    first = pool[torch.randperm(len(pool), generator=generator)[:count]]
    pairs = torch.randint(len(pool), (2, count - len(first)), generator=generator)
    return torch.cat([first, (pool[pairs[0]] + pool[pairs[1]]) / 2])
