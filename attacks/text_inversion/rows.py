"""Words read off the rows of an embedding's gradient: a word that occurs changes its row, and no other row changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.registry import AttackCard
from fdaudit.types import PADDING, AttackTask

from .._moments import StateGradient, state_gradient
from .._reading import reads_forms
from ..gradient_inversion.training_mode import network
from ..gradient_inversion.upload_attack import UploadAttack
from ..gradient_inversion.uploads import sent_from

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["EmbeddingRows", "EmbeddingRowsConfig", "changed_rows", "embedding_of", "without_embedding"]

_SPREADS = 8.0
"""Distance from the median, in median absolute deviations, at which a row has changed by more than noise."""
_ROUNDING = 1e-6
"""Share of the largest change below which a change is rounding."""


class EmbeddingRowsConfig(Config):
    """Settings of the reading of rows."""

    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""


@reads_forms
class EmbeddingRows(UploadAttack["tuple[Message, Message]"]):
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

    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network, as it trains at a client."""
        return network(knowledge)

    def missing(self, module: nn.Module, knowledge: Knowledge) -> str:
        """Return a reason if the network has no embedding of the vocabulary."""
        return without_embedding(module, knowledge)

    def read(self, view: View, knowledge: Knowledge, target: str) -> tuple[Message, Message] | str:
        """Return a victim's upload and the model before it."""
        return sent_from(view, target, self.config.round)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[TextReconstruction, ...]:
        """Return the words of each victim's upload, without an order."""
        weight = f"{embedding_of(self.checked_network(knowledge), knowledge)}.weight"
        guesses = []
        for target, (message, origin) in self.readings(view, knowledge, task)[0].items():
            messages = [origin.seq, message.seq]
            change = view.tensors(message)[weight]
            if message.kind == "model_parameters":
                change = change - view.tensors(origin)[weight]
            state = state_gradient(view, message, origin, target)
            if isinstance(state, StateGradient):
                messages.append(state.seq)
                change = state.gradient[weight]
            words = changed_rows(change)
            words = words[words != PADDING]
            guesses.append(TextReconstruction(target=target, messages=tuple(messages), words=words))
        return tuple(guesses)


def embedding_of(module: nn.Module, knowledge: Knowledge) -> str | None:
    """Return the name of the network's embedding of the vocabulary; None without one, or with several."""
    if knowledge.architecture is None:
        return None
    names = list[str]()
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding) and layer.num_embeddings == knowledge.architecture.words:
            names.append(name)
    if len(names) != 1:
        return None
    return names[0]


def without_embedding(module: nn.Module, knowledge: Knowledge) -> str:
    """Return a reason if the network has no embedding of the vocabulary, or an empty string."""
    if embedding_of(module, knowledge) is None:
        return "the network has no embedding with a row for each word"
    return ""


def changed_rows(change: Tensor) -> Tensor:
    """Return the numbers (m,) of the rows of a change (V, d) that are larger than those of most words.

    Where the rows of most words are exactly zero, every other row counts, however small: attention that looks away
    from a word leaves it a gradient of a millionth of others.
    """
    size = change.double().norm(dim=1)
    middle = size.median()
    spread = (size - middle).abs().median()
    least = torch.zeros_like(middle)
    if middle > 0:
        least = torch.maximum(middle + _SPREADS * spread, _ROUNDING * size.max())
    rows: Tensor = (size > least).nonzero().flatten()
    return rows.cpu()
