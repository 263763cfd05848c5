"""Words every room uses: what an attack is given, what it returns, and what a figure is.

Tensors are `torch.Tensor`; images are float32 in [0, 1], shape (n, c, h, w); labels are int64: classes (n,), or of
the multi-label task (n, C) with 1 for a class that occurs, 0 for one that does not, -1 where nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from fdaudit.events import Event
    from fdaudit.rng import SecretStream

__all__ = [
    "FIXED_SIZE",
    "KINDS",
    "ONLY_SINGLE_LABEL",
    "Applicability",
    "AttackTask",
    "Challenge",
    "DefenseSpec",
    "Extraction",
    "Figure",
    "Goal",
    "GradientRule",
    "Guess",
    "LabelDistribution",
    "Membership",
    "OracleHandle",
    "Reconstruction",
    "Task",
    "TensorInfo",
    "Trained",
    "task_of",
]

Goal = Literal["reconstruction", "membership", "label-distribution", "model-extraction"]
Task = Literal["single-label", "multi-label"]
Trained = Literal["model", "discriminator"]
"""What a client trains on its own records."""

ONLY_SINGLE_LABEL: tuple[str, ...] = ("single-label",)
"""The tasks of a protocol or an attack that does not say which it can do."""


def task_of(y: torch.Tensor) -> Task:
    """The task that labels belong to: one class a record (n,), or one answer for each class (n, C)."""
    return "multi-label" if y.ndim == 2 else "single-label"


@dataclass(frozen=True)
class Applicability:
    """Whether an attack can be tried on a view; `reason` is printed when it cannot."""

    ok: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.ok and not self.reason.strip():
            raise ValueError("Applicability: reason is empty. Say why the attack does not apply.")

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, kw_only=True)
class DefenseSpec:
    """A defence named in a spec or by a protocol.

    Attributes:
        name: of the defence.
        at: where it acts: on messages of `kind` from role `sender`, or in the training of what `of` names.
        kind: the messages' kind; None at training.
        sender: the role on whose side it acts.
        of: what is trained; None on messages.
        params: the defence's own settings.
    """

    name: str
    at: Literal["message", "training"] = "message"
    kind: str | None = None
    sender: str = "client"
    of: Trained | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


class GradientRule(Protocol):
    """A training-time defence: which records a step draws, and what becomes of their gradients.

    Gradients are by parameter name; those of single records (per-sample) have the record first: `(b, *shape)`.
    A step draws records, adds up `clipped` over parts of them, and hands the whole sum to `noised`. That is all
    that training learns of the records in that step.
    """

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters, as recorded beside the release."""
        ...

    def steps(self, length: Mapping[str, int | None]) -> int:
        """How many steps a training of so many `steps` or `epochs` takes, without a look at the data."""
        ...

    def draw(self, records: int, noise: SecretStream) -> torch.Tensor:
        """The numbers (b,) of the records of one step, of `records` in all; b may be 0."""
        ...

    def clipped(self, per_sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The sum over records of their clipped gradients, in double precision."""
        ...

    def noised(self, total: Mapping[str, torch.Tensor], noise: SecretStream) -> dict[str, torch.Tensor]:
        """The gradient that is applied, from the sum over all the step's records."""
        ...

    @property
    def expected_batch(self) -> int:
        """The public number of records that a step's sum is divided by."""
        ...

    def event(self, steps: int) -> Event:
        """What so many steps guarantee."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Challenge:
    """What a membership attack is given for one target client: candidates in random order, no truth.

    Attributes:
        target: the party asked about, for example `client/0`.
        x: (n, c, h, w) candidates.
        y: (n,) their labels, or (n, C) of the multi-label task.
        pair: (n,) number of the coin that decided about each: of a matched pair exactly one of its two candidates
            was trained on; under `coin-flips` each candidate has a coin, and a number, of its own.
        design: how membership was decided: `matched-pairs` or `coin-flips`.
    """

    target: str
    x: torch.Tensor
    y: torch.Tensor
    pair: torch.Tensor
    design: Literal["matched-pairs", "coin-flips"] = "matched-pairs"

    def __post_init__(self) -> None:
        shapes = [tuple(t.shape) for t in (self.x, self.y, self.pair)]
        if len(shapes[0]) != 4 or len({s[:1] for s in shapes}) != 1 or len(shapes[2]) != 1:
            raise ValueError(
                f"Challenge of {self.target}: x, y and pair have shapes {shapes}. "
                "Give images (n, c, h, w), n labels and n numbers of pairs."
            )


class OracleHandle(Protocol):
    """What an attack sees of an oracle: a way to ask, a budget, and nothing behind it."""

    @property
    def answers(self) -> str:
        """`soft` (class probabilities) or `hard` (class indices)."""
        ...

    @property
    def budget(self) -> int:
        """Samples that may be asked in all."""
        ...

    @property
    def remaining(self) -> int:
        """Samples that may still be asked."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Whose models may be asked, where an adversary has clients answer; empty: the released one."""
        ...

    def query(self, x: torch.Tensor, of: str | None = None) -> torch.Tensor:
        """Answers for samples (n, c, h, w): probabilities (n, C) or classes (n,).

        Of the multi-label task each class has a probability of its own, and hard answers are (n, C) of 0 and 1.
        `of` is one of `models`, or None where it is the released one that is asked.

        Raises:
            BudgetExceededError: the query would pass the budget; nothing was asked.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackTask:
    """What an attack is asked to do, and with which means beyond its view.

    Attributes:
        targets: victims fixed beforehand.
        challenges: by target, for membership attacks.
        oracle: an oracle handle, where the protocol has one for this adversary.
        classes: of an attack that shows classes, those that it is to show; empty: all. Others it shows do not count.
    """

    targets: tuple[str, ...]
    challenges: Mapping[str, Challenge] = field(default_factory=dict)
    oracle: OracleHandle | None = None
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """Guessed private inputs behind some messages of one party; without messages, images of its records by class.

    Attributes:
        target: the party whose data was reconstructed.
        messages: `seq` of the messages inverted; empty: the guess is about no message, and each image shows the
            target's records of the class that `labels` names.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) guessed labels, or None.
        objective: the attack's own final matching loss (lower is better); not a quality figure.
        evaluations: image-gradient evaluations spent.
        note: what a reader of its figures must know, such as the settings chosen, or empty.
    """

    target: str
    messages: tuple[int, ...]
    images: torch.Tensor
    labels: torch.Tensor | None = None
    objective: float | None = None
    evaluations: int = 0
    note: str = ""

    @property
    def by_class(self) -> bool:
        """Whether the guess is of classes, not of the records behind messages."""
        return not self.messages and self.labels is not None


@dataclass(frozen=True, kw_only=True, eq=False)
class Membership:
    """Scores for the candidates of one target's challenge, in its order.

    Attributes:
        target: the party asked about.
        scores: (n,), finite; higher means member.
        generated: (k, c, h, w) in [0, 1], the generated samples that the scores rest on, where they do on any.
        note: what a reader of its figures must know, or empty.
    """

    target: str
    scores: torch.Tensor
    generated: torch.Tensor | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelDistribution:
    """A guessed class distribution (C,) of one party's data, summing to 1."""

    target: str
    distribution: torch.Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Extraction:
    """A copy of one party's final model, in the federation's architecture.

    Attributes:
        target: whose model was copied: a victim, or `server` for the released one.
        parameters: of the copy, by name; finite floating-point tensors of the architecture's shapes.
        answers: samples whose answers the copy was fitted to.
    """

    target: str
    parameters: Mapping[str, torch.Tensor]
    answers: int = 0


Guess = Reconstruction | Membership | LabelDistribution | Extraction


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number with its interval, or the reason why it could not be measured.

    Attributes:
        name: what was measured, for example `psnr`.
        value: the number, or None when `unavailable` says why there is none.
        unit: `dB`, `fraction`, `bytes`, `nats`, … or empty for a pure number.
        low: lower end of the interval, or None where none is meaningful.
        high: upper end of the interval.
        confidence: level of the interval.
        method: how the interval was made: `bootstrap`, `clopper-pearson`, …
        n: how many independent items the number rests on.
        note: what a reader must know to read it right.
        unavailable: why there is no value.
        p: how likely chance alone is to do as well, by the design and one-sided; None where nothing says so.
    """

    name: str
    value: float | None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    method: str = ""
    n: int | None = None
    note: str = ""
    unavailable: str = ""
    p: float | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.unavailable):
            raise ValueError(f"Figure {self.name!r}: give either a value or the reason why there is none.")


KINDS: Mapping[str, str] = MappingProxyType(
    {
        "model_parameters": "named parameters and buffers of a model",
        "model_update": "named differences: parameters after local training less those before",
        "gradient": "named gradients of the mean loss of one batch",
        "sample_count": "n (): how many records the sender trains on",
        "class_counts": "counts (C,): records per class",
        "logits": "index (n,), values (n, C)",
        "soft_labels": "index (n,), values (n, C), rows summing to 1, or to the scores they are weighted by",
        "hard_labels": "index (n,), values (n,)",
        "logit_range": "max_abs (): largest absolute logit",
        "proxy_indices": "index (n,)",
        "ensemble_labels": "index (n,), values (n, C) or (n,)",
        "generated_samples": "samples (n, c, h, w)",
        "logit_cotangents": "values (n, C) where logits were sent, gan_weight () where a discriminator adds its own",
        "sample_gradients": "values (n, c, h, w)",
        "discriminator_scores": "values (n,)",
        "generator_parameters": "named parameters of a generator",
        "discriminator_parameters": "named parameters of a discriminator",
        "class_prototypes": "values (C, C)",
        "vote_counts": "index (n,), counts (n, C)",
        "release": "a digest or tensors that a party releases to itself",
        "oracle_query": "samples (n, c, h, w)",
        "oracle_answer": "values (n, C) or (n,)",
        "silence": "no tensors: the sender did not answer",
    }
)
"""Every kind that may cross the wire, with its tensors and their shapes (C classes, n samples)."""


FIXED_SIZE = frozenset(
    {
        "model_parameters",
        "model_update",
        "gradient",
        "sample_count",
        "class_counts",
        "logit_range",
        "generated_samples",
        "logit_cotangents",
        "sample_gradients",
        "discriminator_scores",
        "generator_parameters",
        "discriminator_parameters",
        "class_prototypes",
        "silence",
    }
)
"""Kinds whose tensors have shapes that networks, classes and batch sizes fix. Messages of the others list the samples
that they are about, and are as long as the list."""


@dataclass(frozen=True)
class TensorInfo:
    """What a tensor in a payload is: safetensors dtype name and shape."""

    dtype: str
    shape: tuple[int, ...]
