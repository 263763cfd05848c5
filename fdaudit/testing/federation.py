"""A federation of three clients with a few random records, on which a protocol runs in a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import MULTI_LABEL, SEGMENTATION, SINGLE_LABEL, TEXT, Task
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Parameters, Trainer

__all__ = [
    "CLASSES",
    "SHAPE",
    "SIZES",
    "WORDS",
    "altered",
    "common",
    "dense",
    "execution",
    "features",
    "initial",
    "masked",
    "network",
    "of_texts",
    "public",
    "public_labels",
    "records",
    "records_of",
    "several",
    "tokens",
    "trainer",
    "worded",
]

SIZES = (9, 6, 12)
"""Records by client: unequal, so that weights show."""
CLASSES = 3
SHAPE = (1, 8, 8)
_LENGTH, WORDS = 6, 20
"""Tokens of a text, and words of the vocabulary."""


@lru_cache
def network(width: int = 5) -> Architecture:
    """Return a perceptron with one hidden layer of this width."""
    return architecture(ModelSpec(name="mlp", params={"widths": [width]}), SHAPE, CLASSES)


@lru_cache
def dense() -> Architecture:
    """Return a network with an answer for each pixel."""
    spec = ModelSpec(name="unet", params={"width": 8, "depth": 1})
    return architecture(spec, SHAPE, CLASSES, SEGMENTATION)


@lru_cache
def of_texts(width: int = 4) -> Architecture:
    """Return a network for texts."""
    spec = ModelSpec(name="transformer", params={"width": width})
    return architecture(spec, (_LENGTH,), CLASSES, TEXT, WORDS)


def execution(device: str = "cpu") -> Execution:
    """Return the plainest way to train: one client after the other."""
    return Execution(device=device, threads=1, strategy="loop", memory_format="contiguous")


def trainer() -> Trainer:
    """Return a training core for `network()`."""
    return Trainer(network(), execution())


def public() -> Tensor:
    """Return the public samples (7, 1, 8, 8)."""
    return torch.rand(7, *SHAPE, generator=child(0, "public"))


def public_labels() -> Tensor:
    """Return the classes (7,) of the public samples."""
    return torch.randint(CLASSES, (7,), generator=child(0, "public labels"))


def tokens(n: int, *path: str | int) -> Tensor:
    """Return random texts (n, 6) of at least three words."""
    draws = child(0, "tokens", *path)
    x = torch.randint(2, WORDS, (n, _LENGTH), generator=draws)
    ends = torch.randint(3, _LENGTH + 1, (n, 1), generator=draws)
    return x.masked_fill(torch.arange(_LENGTH) >= ends, 0)


def features(x: Tensor) -> Tensor:
    """Return public features (n, 8) of images (n, 1, 8, 8): the means of their rows."""
    return x.mean((1, 3))


def common(unlike: bool = False, task: Task = SINGLE_LABEL, device: str = "cpu") -> Common:
    """Return the public inputs of all parties.

    Args:
        unlike: whether each client has a network of its own.
        task: the learning task.
        device: where models are trained.
    """
    if task == TEXT:
        others = tuple(map(of_texts, (2, 4, 6))) if unlike else ()
        networks = Networks(of_texts(), others)
        return Common(networks=networks, execution=execution(device), public=tokens(7, "public"), task=task)
    own = tuple(network(width) for width in (4, 5, 6)) if unlike else ()
    shared = dense() if task == SEGMENTATION else network()
    return Common(
        networks=Networks(shared, own),
        execution=execution(device),
        public=public(),
        encode=features,
        task=task,
        public_labels=public_labels(),
    )


def initial(party: str = "server", seed: int = 5, unlike: bool = False) -> Parameters:
    """Return the parameters that a party starts from."""
    return common(unlike).networks.initial([party], seed)[party]


def records(sizes: Sequence[int] = SIZES, seed: int = 0) -> dict[str, PartyData]:
    """Return random images (n, 1, 8, 8) and classes (n,) for each client."""
    data = {}
    for k, n in enumerate(sizes):
        x = torch.rand(n, *SHAPE, generator=child(seed, "x", k))
        y = torch.randint(CLASSES, (n,), generator=child(seed, "y", k))
        data[f"client/{k}"] = PartyData(x, y)
    return data


def several(data: Mapping[str, PartyData]) -> dict[str, PartyData]:
    """Return the same images with labels (n, C) drawn for each class by itself, a third of them unknown."""
    relabelled = {}
    for k, d in data.items():
        y = torch.randint(-1, 2, (len(d), CLASSES), generator=child(9, "several", k))
        relabelled[k] = PartyData(d.x, y)
    return relabelled


def masked(data: Mapping[str, PartyData]) -> dict[str, PartyData]:
    """Return the same images with masks (n, h, w): the class of each pixel follows from its brightness."""
    with_masks: dict[str, PartyData] = {}
    for k, d in data.items():
        masks = (d.x[:, 0] * CLASSES).long().clamp(max=CLASSES - 1)
        with_masks[k] = PartyData(d.x, masks)
    return with_masks


def worded(data: Mapping[str, PartyData]) -> dict[str, PartyData]:
    """Return texts (n, 6) with the same classes."""
    texts: dict[str, PartyData] = {}
    for k, d in data.items():
        texts[k] = PartyData(tokens(len(d), k), d.y)
    return texts


def records_of(task: Task, seed: int = 0) -> dict[str, PartyData]:
    """Return records of a learning task for each client."""
    data = records(seed=seed)
    if task == TEXT:
        return worded(data)
    if task == SEGMENTATION:
        return masked(data)
    if task == MULTI_LABEL:
        return several(data)
    return data


def altered(data: Mapping[str, PartyData], client: str) -> dict[str, PartyData]:
    """Return the same records, those of one client inverted and labelled otherwise: even predicted classes change."""
    own = data[client]
    x = 1 - own.x if own.x.is_floating_point() else own.x.flip(0)
    return {**data, client: PartyData(x, (own.y + 1) % CLASSES)}
