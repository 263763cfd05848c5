"""Surrogates: models distilled from recorded answers alone, many at once.

Guarantees:
  * all surrogates of one call train together, from the same initial weights and with the same order of batches. They
    differ only by their teachers' answers;
  * equal answers and settings are distilled once in a process.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from pydantic import Field
from torch import Tensor

from fdaudit.models.network import moved
from fdaudit.rng import child
from fdaudit.storage.digests import canonical
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches, parameters_of

from .._shadows import many_at_once
from ._references import ShadowConfig

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["SurrogateConfig", "distil", "teach"]

_MOST_KEPT = 128 << 20
"""Bytes of surrogates that a process remembers."""

_kept: OrderedDict[str, Parameters] = OrderedDict()
_turn = Lock()


class SurrogateConfig(ShadowConfig):
    """Settings of surrogates; only `distillation-lira` uses those of shadow models."""

    students: int = Field(64, ge=2)
    """Shadow models of each victim, the first of its matched ones, from which surrogates are distilled."""
    samples: int = Field(2000, ge=2)
    """Largest number of a client's answers that its surrogate learns from: the last ones."""
    distill_steps: int = Field(400, ge=1)
    """Steps of Adam of one surrogate."""
    distill_batch_size: int = Field(128, ge=1)
    """Answers a step."""
    distill_lr: float = Field(5e-3, gt=0)
    """Adam's learning rate, annealed to a hundredth of it on a cosine."""


def teach(knowledge: Knowledge, teacher: Parameters, x: Tensor, kind: str) -> Tensor:
    """Return the answers of a model of the adversary's own, as a client gives them: logits or probabilities (n, C)."""
    if knowledge.train is None:
        raise ValueError("teach: no training core to ask the model with.")
    z = knowledge.train.predict(teacher, x)
    return z - z.mean(1, keepdim=True) if kind == "logits" else z.softmax(1)


def distil(
    knowledge: Knowledge, lessons: Sequence[tuple[Tensor, Tensor]], kind: str, config: SurrogateConfig
) -> list[Parameters]:
    """Return one surrogate for each lesson.

    Args:
        knowledge: with the architecture and a training core.
        lessons: samples (n, c, h, w) and answers about them (n, C).
        kind: `logits`, fitted by their mean absolute error (as in Shi et al.'s code), or `soft_labels`, fitted by
            KL divergence.
        config: the settings of distillation.

    Raises:
        TrainingDivergedError: a loss became NaN or infinite.
    """
    train = many_at_once(knowledge)
    if train is None or knowledge.architecture is None:
        raise ValueError("distil: no architecture or training core.")
    keys = [_key(knowledge, x, values, kind, config) for x, values in lessons]
    with _turn:
        surrogates = {key: _kept[key] for key in keys if key in _kept}
    absent = [n for n, key in enumerate(keys) if key not in surrogates]
    start = parameters_of(knowledge.architecture.build(child(config.seed, "surrogate", "start")))
    jobs = []
    for n in absent:
        x, values = lessons[n]
        batches = draw_batches(
            len(x),
            config.distill_batch_size,
            steps=config.distill_steps,
            generator=child(config.seed, "surrogate", "batches"),
        )
        jobs.append(
            Job(
                party=f"surrogate {n}",
                parameters=start,
                x=x,
                targets=values,
                batches=batches,
                seed=config.seed,
            )
        )
    fit = Fit(
        lr=config.distill_lr,
        final_lr=config.distill_lr / 100,
        optimizer="adam",
        objective="l1" if kind == "logits" else "kl",
    )
    fitted_models = train.fit(jobs, fit) if jobs else []
    for n, fitted in zip(absent, fitted_models, strict=True):
        surrogates[keys[n]] = moved(fitted.parameters, "cpu")
    _remember(surrogates)
    return [surrogates[key] for key in keys]


def _key(knowledge: Knowledge, x: Tensor, values: Tensor, kind: str, config: SurrogateConfig) -> str:
    network = knowledge.architecture
    card = {
        "network": None if network is None else [network.name, dict(network.params), network.classes],
        "settings": config.model_dump(mode="json", include=set(SurrogateConfig.__annotations__)),
        "seed": config.seed,
        "kind": kind,
        "shapes": [list(x.shape), list(values.shape)],
    }
    digest = hashlib.sha256(canonical(card))
    for tensor in (x, values):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _remember(surrogates: dict[str, Parameters]) -> None:
    with _turn:
        _kept.update(surrogates)
        for key in surrogates:
            _kept.move_to_end(key)
        size = sum(map(_bytes, _kept.values()))
        while len(_kept) > 1 and size > _MOST_KEPT:
            _, oldest = _kept.popitem(last=False)
            size -= _bytes(oldest)


def _bytes(parameters: Parameters) -> int:
    return sum(t.numel() * t.element_size() for t in parameters.values())
