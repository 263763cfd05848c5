"""Shared types: the inputs of attacks, and figures.

Tensors are `torch.Tensor`; images are float32 in [0, 1], shape (n, c, h, w); labels are int64: classes (n,), in the
multi-label task (n, C) with 1 for a class that occurs, 0 for one that does not, -1 if unknown, or in segmentation the
class of each pixel (n, h, w), 0 for the background.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from fdaudit import config as settings
    from fdaudit.events import Event
    from fdaudit.rng import SecretStream

__all__ = [
    "Applicability",
    "AttackTask",
    "Challenge",
    "DefenseSpec",
    "Design",
    "Figure",
    "GradientRule",
    "ImportPart",
    "OracleHandle",
    "TensorInfo",
    "Trained",
]

Design = Literal["matched-pairs", "coin-flips", "observational"]
"""How membership was decided: a fair coin for each pair or each record, or not by coins."""
Trained = str
"""The network that a client trains on its own records: `model`, `discriminator`, or another that a protocol names."""

PADDING, UNKNOWN = 0, 1
"""Token numbers of padding, and of every word outside the vocabulary."""


@dataclass(frozen=True)
class Applicability:
    """The answer to whether an attack applies to a view; `reason` is printed if it does not."""

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
        at: where it acts: on messages of `kind` from role `sender`, on receipt of them, or in the training of the
            network `of`.
        kind: the messages' kind; None at training.
        sender: the role on whose side it acts.
        of: the trained network; None on messages.
        params: the defence's own settings.
    """

    name: str
    at: Literal["message", "training", "receipt"] = "message"
    kind: str | None = None
    sender: str = "client"
    of: Trained | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


class GradientRule(Protocol):
    """A training-time defence: draws the records of a step and turns their gradients into one.

    Gradients are by parameter name. Per-sample gradients have the record first: `(b, *shape)`. A step draws records,
    adds up `clipped` over parts of them, and passes the whole sum to `noised`. Training learns nothing else about the
    records in that step.
    """

    Config: ClassVar[type[settings.Config]]

    def __init__(self, config: Any, batch_size: int) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        """Return name and parameters, as recorded with the release."""
        ...

    def steps(self, length: Mapping[str, int | None]) -> int:
        """Return the number of steps in a training of `length` steps or epochs, without using the data."""
        ...

    def draw(self, records: int, noise: SecretStream) -> torch.Tensor:
        """Draw the numbers (b,) of the records of one step, out of `records`; b may be 0."""
        ...

    def clipped(self, per_sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the sum over records of their clipped gradients, in double precision."""
        ...

    def noised(self, total: Mapping[str, torch.Tensor], noise: SecretStream) -> dict[str, torch.Tensor]:
        """Return the gradient to apply, from the sum over all the step's records."""
        ...

    @property
    def expected_batch(self) -> int:
        """Return the public number of records that a step's sum is divided by."""
        ...

    def event(self, steps: int) -> Event:
        """Return the privacy event of `steps` steps."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Challenge:
    """The input of a membership attack on one target client: candidates in random order, without the truth.

    Attributes:
        target: the party asked about, for example `client/0`.
        x: (n, c, h, w) candidates, or token numbers (n, L).
        y: (n,) their labels, (n, C) of the multi-label task, or masks (n, h, w) of segmentation.
        pair: (n,) number of the coin that decided about each: of a matched pair exactly one of its two candidates
            was trained on; under `coin-flips` each candidate has a coin, and a number, of its own.
        design: how membership was decided: `matched-pairs`, `coin-flips`, or without coins: `observational`.
    """

    target: str
    x: torch.Tensor
    y: torch.Tensor
    pair: torch.Tensor
    design: Design = "matched-pairs"

    def __post_init__(self) -> None:
        shapes = [tuple(t.shape) for t in (self.x, self.y, self.pair)]
        if len(shapes[0]) not in (2, 4) or len({s[:1] for s in shapes}) != 1 or len(shapes[2]) != 1:
            raise ValueError(
                f"Challenge of {self.target}: x, y and pair have shapes {shapes}. "
                "Give images (n, c, h, w) or texts (n, L), n labels and n numbers of pairs."
            )


class OracleHandle(Protocol):
    """An attack's access to an oracle: a query function and a budget, but no access to the model."""

    @property
    def answers(self) -> str:
        """Return `soft` (class probabilities) or `hard` (class indices)."""
        ...

    @property
    def budget(self) -> int:
        """Return the total number of samples that may be queried."""
        ...

    @property
    def remaining(self) -> int:
        """Return the number of samples that may still be queried."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """Return the clients whose models may be queried; empty if only the released one may."""
        ...

    def query(self, x: torch.Tensor, of: str | None = None) -> torch.Tensor:
        """Return answers for samples (n, c, h, w): probabilities (n, C) or classes (n,).

        In the multi-label task each class has its own probability, and hard answers are (n, C) of 0 and 1. `of` is one
        of `models`, or None for the released model.

        Raises:
            BudgetExceededError: the query would exceed the budget; nothing was queried.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackTask:
    """The task of an attack, with its means beyond the view.

    Attributes:
        targets: victims fixed beforehand.
        challenges: by target, for membership attacks.
        oracle: an oracle handle, if the protocol has one for this adversary.
        classes: for an attack on classes, the classes to reconstruct; empty: all. Guesses of others do not count.
    """

    targets: tuple[str, ...]
    challenges: Mapping[str, Challenge] = field(default_factory=dict)
    oracle: OracleHandle | None = None
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number with its interval, or the reason why it could not be measured.

    Attributes:
        name: what was measured, for example `psnr`.
        value: the number, or None when `unavailable` says why there is none.
        unit: `dB`, `fraction`, `bytes`, `nats`, … or empty for a pure number.
        low: lower end of the interval, or None if none is meaningful.
        high: upper end of the interval.
        confidence: level of the interval.
        method: how the interval was made: `bootstrap`, `clopper-pearson`, …
        n: number of independent items behind the value.
        note: information needed to read the figure correctly.
        unavailable: why there is no value.
        p: one-sided p-value of this result under guessing, from the design; None if there is no test.
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

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "allow_inf_nan": False,
        "revalidate_instances": "always",
        "strict": True,
    }
    """A result checks the numbers of every figure that it is given."""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.unavailable):
            raise ValueError(f"Figure {self.name!r}: give either a value or the reason why there is none.")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's description in a payload: safetensors dtype name and shape."""

    dtype: str
    shape: tuple[int, ...]


ImportPart = Literal[
    "architecture",
    "records",
    "images",
    "uses",
    "candidates",
    "auxiliary",
    "public",
    "test",
    "stand-in",
    "initial",
]
"""What an auditor may bring to an import (`fdaudit.planning.ladder`)."""
