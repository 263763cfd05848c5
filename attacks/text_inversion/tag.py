"""Gradient matching on texts: find words and their order whose gradient equals the one sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.goals.text_reconstruction import TextReconstruction
from fdaudit.models.network import call_with
from fdaudit.registry import AttackCard
from fdaudit.training.optimizers import adam
from fdaudit.types import PADDING, Applicability, AttackTask

from .._reading import reads_forms
from ..gradient_inversion.labels import recover_labels
from ..gradient_inversion.training_mode import separable_network
from ..gradient_inversion.uploads import Upload, applies, find_uploads
from .rows import changed_rows, embedding_of

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
class TAG:
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

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for an embedding of the vocabulary, a victim's one-step upload, and the model that it started from."""
        module = separable_network(knowledge)
        if isinstance(module, str):
            return Applicability(False, module)
        if embedding_of(module, knowledge) is None:
            return Applicability(False, "the network has no embedding with a row for each word")
        uploads, reasons = self._uploads(view, task)
        return applies(uploads, reasons)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[TextReconstruction, ...]:
        """Return the texts of each victim with a one-step upload, and their words."""
        module = separable_network(knowledge)
        if isinstance(module, str) or knowledge.architecture is None:
            raise UsageError("knowledge", None, f"does not do: {module}", "Ask `applicable` first.")
        name = embedding_of(module, knowledge)
        if name is None:
            raise UsageError("knowledge", None, "has no embedding to read", "Ask `applicable` first.")
        probes = knowledge.architecture.random_inputs(_PROBES, generator)
        if knowledge.auxiliary is not None and len(knowledge.auxiliary[0]):
            probes = knowledge.auxiliary[0][: 4 * _PROBES]
        guesses = []
        for upload in self._uploads(view, task)[0]:
            texts, objective = self._one(upload, module, name, probes, generator)
            guesses.append(
                TextReconstruction(
                    target=upload.target,
                    messages=upload.messages,
                    words=torch.unique(texts[texts != PADDING]),
                    texts=texts,
                    objective=objective,
                )
            )
        return tuple(guesses)

    def _one(
        self, upload: Upload, module: nn.Module, name: str, probes: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, float]:
        """Return texts (n, L) and their distance of gradients."""
        n = upload.training.images
        length = probes.shape[1]
        labels = recover_labels(upload.gradient, module, upload.start, n, probes)
        words = changed_rows(upload.gradient[f"{name}.weight"])
        words = words[words != PADDING]
        if not len(words):
            return torch.full((n, length), PADDING), float("inf")
        long = _longest(upload.gradient, module, length)
        matching = _Matching(upload, module, name, words, labels, (n, length, long))
        starts = [torch.randn(n, long, len(words), generator=generator) for _ in range(self.config.restarts)]
        objective, logits = min((matching.matched(s, self.config) for s in starts), key=lambda one: one[0])
        texts = torch.full((n, length), PADDING)
        texts[:, :long] = words[logits.argmax(2)]
        return texts, objective

    def _uploads(self, view: View, task: AttackTask) -> tuple[list[Upload], dict[str, str]]:
        uploads, reasons = find_uploads(view, task.targets, self.config.round, self.config.max_texts)
        several = [u for u in uploads if u.update is not None]
        reasons |= {u.target: f"its update takes {len(u.training.batches)} steps, not one" for u in several}
        reasons = {k: v.replace("images", "texts") for k, v in reasons.items()}
        return [u for u in uploads if u.update is None], reasons


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
        self._free = {
            n: upload.start[n].clone().requires_grad_()
            for n, p in module.named_parameters()
            if p.requires_grad
        }
        self._rest = {n: t for n, t in upload.start.items() if n not in self._free}
        self._sent = {n: upload.gradient[n] for n in self._free}
        self._scale = 1 / torch.cat([g.flatten() for g in self._sent.values()]).norm().clamp_min(1e-12)
        n, length, self._long = shape
        self._ids = torch.full((n, length), PADDING)
        self._ids[:, : self._long] = int(words[0])  # a place holder: it tells words from padding
        self._weights = torch.zeros(0)

    def matched(self, noise: Tensor, config: TAGConfig) -> tuple[float, Tensor]:
        """Return the distance, and weights (n, long, B), of one start."""
        logits = (self._start() + 0.1 * noise).requires_grad_()
        optimizer = adam([logits], config.lr, fused=False)
        best = float("inf")
        best_logits = logits.detach().clone()
        for _ in range(config.iterations):
            distance = self._distance(logits.softmax(2), config.alpha)
            if distance.item() < best:
                best = distance.item()
                best_logits = logits.detach().clone()
            (logits.grad,) = torch.autograd.grad(distance, [logits])
            optimizer.step()
        return best, best_logits

    def _distance(self, weights: Tensor, alpha: float) -> Tensor:
        self._weights = weights
        handle = self._module.get_submodule(self._name).register_forward_hook(self._replaced)
        try:
            z = call_with(self._module, {**self._free, **self._rest}, self._ids)
        finally:
            handle.remove()
        loss = F.cross_entropy(z, self._labels)
        gradients = torch.autograd.grad(loss, list(self._free.values()), create_graph=True, allow_unused=True)
        total = torch.zeros(())
        for target, g in zip(self._sent.values(), gradients, strict=True):
            apart = self._scale * ((torch.zeros_like(target) if g is None else g) - target)
            total = total + apart.square().sum() + alpha * apart.abs().sum()
        return total

    def _replaced(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Return mean embeddings in place of those of the place holders."""
        table = self._free[f"{self._name}.weight"]
        mean = self._weights @ table[self._words]
        return torch.cat([mean, output[:, self._long :]], 1)

    def _start(self) -> Tensor:
        """Return logits of words by position: of the least squares for one text or several, or zeros."""
        n = len(self._ids)
        B = len(self._words)
        place = _positions(self._module, self._ids.shape[1])
        if place is None:
            return torch.zeros(n, self._long, B)
        by_word = self._sent[f"{self._name}.weight"][self._words].double()
        name, marks = place
        by_place = self._sent[f"{name}.weight"][marks : marks + self._long].double()
        share: Tensor = torch.linalg.lstsq(by_place.T, by_word.T, driver="gelsd").solution  # (long, B)
        return (2 * share.clamp(0, 1)).float().expand(n, -1, -1).clone()


def _positions(module: nn.Module, length: int) -> tuple[str, int] | None:
    """Return the name of an embedding with a row for each position, and the marks before a text; None without one.

    It has L rows, or L + 2 if the network puts a mark before each text and one after it, as BERT does.
    """
    embeddings = [
        (n, (m.num_embeddings - length) // 2)
        for n, m in module.named_modules()
        if isinstance(m, nn.Embedding) and m.num_embeddings in (length, length + 2)
    ]
    return embeddings[0] if len(embeddings) == 1 else None


def _longest(gradient: Mapping[str, Tensor], module: nn.Module, length: int) -> int:
    """Return the number of positions that some text fills: those with a gradient; all, if that cannot be seen."""
    place = _positions(module, length)
    if place is None:
        return length
    name, marks = place
    size = gradient[f"{name}.weight"].double().norm(dim=1)
    there = (size > 1e-6 * size.max()).nonzero().flatten()
    return max(1 + int(there.max()) - 2 * marks, 1) if len(there) else length
