"""Words read off the rows of an embedding's gradient: a word that occurs changes its row, and no other row changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.registry import AttackCard
from fdaudit.types import PADDING, Applicability, AttackTask

from .._moments import StateGradient, state_gradient
from .._reading import reads_forms
from ..gradient_inversion.training_mode import network
from ..gradient_inversion.uploads import applies, sent_from

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["EmbeddingRows", "EmbeddingRowsConfig", "changed_rows", "embedding_of"]

_SPREADS = 8.0
"""Distance from the median, in median absolute deviations, at which a row has changed by more than noise."""
_ROUNDING = 1e-6
"""Share of the largest change below which a change is rounding."""


class EmbeddingRowsConfig(Config):
    """Settings of the reading of rows."""

    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""


@reads_forms
class EmbeddingRows:
    """Reads the words that occur in a client's texts off its upload: their rows of the embedding change.

    A gradient has a row for each word of the vocabulary. The row of a word that occurs in no text of the batch is zero,
    and so is its change in an update of several steps. Noise moves all rows, so a row counts if it moves more than the
    rows of most words do. The attack tells which words occur, not in which text or order. It needs no optimisation and
    no limit on batches or steps.
    """

    card = AttackCard(
        name="embedding-rows",
        work={"once": 700, "each": 100},
        goal="text-reconstruction",
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture",),
        source="Melis, Song, De Cristofaro & Shmatikov 2019, section 4.1",
        tasks=("text",),
        profiles={"quick": {}, "standard": {}, "full": {}},
        control={"on": "gradients"},
    )
    Config: ClassVar[type[EmbeddingRowsConfig]] = EmbeddingRowsConfig

    def __init__(self, config: EmbeddingRowsConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for an embedding of the vocabulary, a victim's upload, and the model that it started from."""
        module = network(knowledge)
        if isinstance(module, str):
            return Applicability(False, module)
        if embedding_of(module, knowledge) is None:
            return Applicability(False, "the network has no embedding with a row for each word")
        uploads, reasons = self._sent(view, task)
        return applies(list(uploads), reasons)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[TextReconstruction, ...]:
        """Return the words of each victim's upload, without an order."""
        module = network(knowledge)
        name = None if isinstance(module, str) else embedding_of(module, knowledge)
        if name is None:
            raise UsageError("knowledge", None, "has no embedding to read", "Ask `applicable` first.")
        guesses = []
        for target, (message, origin) in self._sent(view, task)[0].items():
            change = view.tensors(message)[f"{name}.weight"]
            if message.kind == "model_parameters":
                change = change - view.tensors(origin)[f"{name}.weight"]
            messages: tuple[int, ...] = (origin.seq, message.seq)
            state = state_gradient(view, message, origin, target)
            if isinstance(state, StateGradient):
                change, messages = state.gradient[f"{name}.weight"], (*messages, state.seq)
            words = changed_rows(change)
            guesses.append(
                TextReconstruction(target=target, messages=messages, words=words[words != PADDING])
            )
        return tuple(guesses)

    def _sent(
        self, view: View, task: AttackTask
    ) -> tuple[dict[str, tuple[Message, Message]], Mapping[str, str]]:
        uploads: dict[str, tuple[Message, Message]] = {}
        reasons: dict[str, str] = {}
        for target in task.targets:
            upload = sent_from(view, target, self.config.round)
            if isinstance(upload, str):
                reasons[target] = upload
            else:
                uploads[target] = upload
        return uploads, reasons


def embedding_of(module: nn.Module, knowledge: Knowledge) -> str | None:
    """Return the name of the network's embedding of the vocabulary; None without one, or with several."""
    words = 0 if knowledge.architecture is None else knowledge.architecture.words
    names = [
        name
        for name, m in module.named_modules()
        if isinstance(m, nn.Embedding) and m.num_embeddings == words
    ]
    return names[0] if len(names) == 1 else None


def changed_rows(change: Tensor) -> Tensor:
    """Return the numbers (m,) of the rows of a change (V, d) that are larger than those of most words.

    Where the rows of most words are exactly zero, every other row counts, however small: attention that looks away
    from a word leaves it a gradient of a millionth of others.
    """
    size = change.double().norm(dim=1)
    middle = size.median()
    spread = (size - middle).abs().median()
    least = torch.maximum(middle + _SPREADS * spread, _ROUNDING * size.max())
    least = least if middle > 0 else torch.zeros_like(middle)
    rows: Tensor = (size > least).nonzero().flatten()
    return rows.cpu()
