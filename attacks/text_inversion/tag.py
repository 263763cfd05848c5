"""Gradient matching on texts: find words and their order whose gradient equals the one sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.models.network import call_with, trainable_parameters
from fdaudit.registry import AttackCard
from fdaudit.training.optimizers import adam
from fdaudit.types import PADDING, AttackTask

from .._reading import reads_forms
from ..gradient_inversion.gradients import flatten
from ..gradient_inversion.labels import recover_labels
from ..gradient_inversion.training_mode import separable_network
from ..gradient_inversion.upload_attack import UploadAttack
from ..gradient_inversion.uploads import Upload, find_upload
from .rows import changed_rows, embedding_of, without_embedding

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["TAG", "TAGConfig"]

_PROBES = 256


class TAGConfig(Config):
    """Settings of TAG."""

    alpha: float = Field(0.01, ge=0)
    """α: weight of the mean absolute difference beside the squared one."""
    iterations: int = Field(400, ge=1)
    """Steps of Adam of each start."""
    restarts: int = Field(2, ge=1)
    """Random starts for each message; the best match is kept."""
    lr: float = Field(0.1, gt=0)
    """Learning rate of Adam."""
    round: int = Field(0, ge=0)
    """Round of the upload, or the next that shows one of the victim."""
    max_texts: int = Field(8, ge=1)
    """Uploads that mix more texts than this are not tried."""


@reads_forms
class TAG(UploadAttack[Upload]):
    """Finds texts whose gradient is the one sent, by Adam on the distance ‖Δ‖² + α‖Δ‖₁ of gradients.

    The words that occur are first read off the embedding's rows. Each position of each text then has a weight for each
    of these words, and the network reads the weighted mean of their embeddings. The weights are optimised, and the
    heaviest word of a position is the guess. If the network has a learned embedding of positions, the start is the
    least-squares solution of "the row of a word is the sum of the rows of its positions". It works on the gradient of
    one step, sent directly or as the update that it caused.
    """

    card = AttackCard(
        name="tag",
        work={"once": 15000, "each": 3000, "grows": ("restarts", "iterations")},
        goal="text-reconstruction",
        needs=("gradient", "model_update", "model_parameters"),
        reads=("optimizer_state",),
        assumes=("architecture", "auxiliary"),
        source="Deng, Wang, Li, Wang, Shang, Liu, Rajasekaran & Ding 2021",
        tasks=("text",),
        profiles={
            "quick": {"restarts": 1, "iterations": 300},
            "standard": {"restarts": 2, "iterations": 1000},
            "full": {"restarts": 8, "iterations": 3000},
        },
        control={"on": "gradients"},
    )
    Config: ClassVar[type[TAGConfig]] = TAGConfig

    def __init__(self, config: TAGConfig) -> None:
        self.config = config

    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network in evaluation, as far as no text depends on others of its batch."""
        return separable_network(knowledge)

    def missing(self, module: nn.Module, knowledge: Knowledge) -> str:
        """Return a reason if the network has no embedding of the vocabulary."""
        return without_embedding(module, knowledge)

    def read(self, view: View, knowledge: Knowledge, target: str) -> Upload | str:
        """Return a victim's one-step upload."""
        upload = find_upload(view, target, self.config.round, self.config.max_texts)
        if isinstance(upload, str):
            return upload.replace("images", "texts")
        if upload.update is not None:
            return f"its update takes {len(upload.training.batches)} steps, not one"
        return upload

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[TextReconstruction, ...]:
        """Return the texts of each victim with a one-step upload, and their words."""
        module = self.checked_network(knowledge)
        name = embedding_of(module, knowledge)
        assert name is not None and knowledge.architecture is not None  # noqa: S101, PT018 - they were checked
        probes = knowledge.architecture.random_inputs(_PROBES, generator)
        if knowledge.auxiliary is not None and len(knowledge.auxiliary[0]):
            probes = knowledge.auxiliary[0][: 4 * _PROBES]
        guesses = []
        for target, upload in self.readings(view, knowledge, task)[0].items():
            texts, objective = self._match(upload, module, name, probes, generator)
            guess = TextReconstruction(
                target=target,
                messages=upload.messages,
                words=torch.unique(texts[texts != PADDING]),
                texts=texts,
                objective=objective,
            )
            guesses.append(guess)
        return tuple(guesses)

    def _match(
        self, upload: Upload, module: nn.Module, name: str, probes: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, float]:
        """Return texts (n, L) and their distance of gradients."""
        n = upload.training.images
        length = probes.shape[1]
        texts = torch.full((n, length), PADDING)
        labels = recover_labels(upload.gradient, module, upload.start, n, probes)
        words = changed_rows(upload.gradient[f"{name}.weight"])
        words = words[words != PADDING]
        if not len(words):
            return texts, float("inf")
        long = _longest(upload.gradient, module, length)
        matching = _Matching(upload, module, name, words, labels, (n, length, long))
        matches = []
        for _ in range(self.config.restarts):
            start = torch.randn(n, long, len(words), generator=generator)
            matches.append(matching.matched(start, self.config))
        objective, logits = min(matches, key=lambda match: match[0])
        texts[:, :long] = words[logits.argmax(2)]
        return texts, objective


class _Matching:
    """The distance of a guess's gradient from the one sent.

    Args:
        upload: the upload of n texts.
        module: the network.
        name: its embedding of the vocabulary.
        words: (B,) the words that occur.
        labels: (n,) the texts' classes.
        shape: n, L and the number of positions that are guessed.
    """

    def __init__(
        self,
        upload: Upload,
        module: nn.Module,
        name: str,
        words: Tensor,
        labels: Tensor,
        shape: tuple[int, int, int],
    ) -> None:
        self._module, self._words, self._labels, self._name = module, words, labels, name
        # Of the model that the client started from, the trained parameters become leaves.
        self._trained: dict[str, Tensor] = {}
        self._sent: dict[str, Tensor] = {}
        for parameter in trainable_parameters(module):
            self._trained[parameter] = upload.start[parameter].clone().requires_grad_()
            self._sent[parameter] = upload.gradient[parameter]
        self._model = {**upload.start, **self._trained}
        self._scale = 1 / flatten(self._sent, list(self._sent)).norm().clamp_min(1e-12)
        n, length, self._long = shape
        self._ids = torch.full((n, length), PADDING)
        self._ids[:, : self._long] = int(words[0])  # a place holder: it tells words from padding
        self._weights = torch.zeros(0)

    def matched(self, noise: Tensor, config: TAGConfig) -> tuple[float, Tensor]:
        """Return the distance, and weights (n, long, B), of one start."""
        # Of the least squares for one text or several, or zeros.
        n, length = self._ids.shape
        place = _positions(self._module, length)
        if place is None:
            start = torch.zeros(n, self._long, len(self._words))
        else:
            by_word = self._sent[f"{self._name}.weight"][self._words].double()
            name, marks = place
            by_place = self._sent[f"{name}.weight"][marks : marks + self._long].double()
            share: Tensor = torch.linalg.lstsq(by_place.T, by_word.T, driver="gelsd").solution  # (long, B)
            start = (2 * share.clamp(0, 1)).float().expand(n, -1, -1).clone()
        logits = (start + 0.1 * noise).requires_grad_()
        optimizer = adam([logits], config.lr, fused=False)
        leaves = list(self._trained.values())
        best, best_logits = float("inf"), logits.detach().clone()
        for _ in range(config.iterations):
            self._weights = logits.softmax(2)
            handle = self._module.get_submodule(self._name).register_forward_hook(self._replaced)
            try:
                z = call_with(self._module, self._model, self._ids)
            finally:
                handle.remove()
            loss = F.cross_entropy(z, self._labels)
            gradients = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
            # ‖Δ‖² + α‖Δ‖₁, with Δ in units of the length of the gradient sent.
            distance = torch.zeros(())
            for target, gradient in zip(self._sent.values(), gradients, strict=True):
                delta = self._scale * (gradient - target)
                distance = distance + delta.square().sum() + config.alpha * delta.abs().sum()
            if distance.item() < best:
                best, best_logits = distance.item(), logits.detach().clone()
            (logits.grad,) = torch.autograd.grad(distance, [logits])
            optimizer.step()
        return best, best_logits

    def _replaced(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Return mean embeddings in place of those of the place holders."""
        table = self._trained[f"{self._name}.weight"]
        mean = self._weights @ table[self._words]
        return torch.cat([mean, output[:, self._long :]], 1)


def _positions(module: nn.Module, length: int) -> tuple[str, int] | None:
    """Return the name of an embedding with a row for each position, and the marks before a text; None without one.

    It has L rows, or L + 2 if the network puts a mark before each text and one after it, as BERT does.
    """
    places = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding) and layer.num_embeddings in (length, length + 2):
            places.append((name, (layer.num_embeddings - length) // 2))
    if len(places) != 1:
        return None
    return places[0]


def _longest(gradient: Mapping[str, Tensor], module: nn.Module, length: int) -> int:
    """Return the number of positions that some text fills: those with a gradient; all, if that cannot be seen."""
    place = _positions(module, length)
    if place is None:
        return length
    name, marks = place
    size = gradient[f"{name}.weight"].double().norm(dim=1)
    filled = (size > 1e-6 * size.max()).nonzero().flatten()
    if not len(filled):
        return length
    return max(1 + int(filled.max()) - 2 * marks, 1)
