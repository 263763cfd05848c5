"""The description of one kind of messages: its tensors, its size, and how private data travel in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Network", "Scale", "Shapes", "TensorForm", "Way"]

Network = Literal["model", "optimizer", "generator", "discriminator"]
Scale = Literal["logits", "probabilities", "classes"]
Way = Literal[
    "counts",
    "labels",
    "declined",
    "updates",
    "answers",
    "prototypes",
    "generator",
    "cotangents",
    "ensemble",
]
"""How private data travel in a message that a client sends. `ensemble` is what a server makes of clients' answers. The
remedy for a finding is that of the first of its ways, in this order."""

Shapes = Mapping[str, tuple[int, ...] | None]
"""The shapes of a message's tensors by name; None where the record does not tell the shape."""


@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """One tensor of a kind.

    Attributes:
        name: the tensor's name.
        shapes: the shapes that it may have, each as letters with spaces between them. A letter stands for the same size
            in all tensors of a message: `n` samples, `C` classes, `k` of them, `c h w` of an image, `L` tokens. An
            empty text is one number.
        whole: whether its values are whole numbers, unless a defence changes them.
        when: when the tensor is sent, as in "where logits were sent"; empty: in every message of the kind.
        meaning: what its values are, if the names of tensor and kind do not say so.
    """

    name: str
    shapes: tuple[str, ...]
    whole: bool = False
    when: str = ""
    meaning: str = ""

    @property
    def text(self) -> str:
        """Return name, shapes and meaning in words."""
        shapes = []
        for shape in self.shapes:
            letters = shape.split()
            text = ", ".join(letters)
            if len(letters) == 1:
                text += ","
            shapes.append(f"({text})")
        words = f"{self.name} {' or '.join(shapes)}"
        if self.when:
            words += f" {self.when}"
        if self.meaning:
            words += f": {self.meaning}"
        return words

    def sizes(self, shape: tuple[int, ...]) -> dict[str, int] | None:
        """Return the size of each letter, or None if the tensor cannot have this shape.

        One number may also be stored with one entry, as (1,).
        """
        for stated in self.shapes:
            letters = stated.split()
            if not letters and math.prod(shape) == 1:
                return {}
            if len(letters) != len(shape):
                continue
            sizes = dict(zip(letters, shape, strict=True))
            if [sizes[letter] for letter in letters] == list(shape):
                return sizes
        return None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of messages.

    Attributes:
        name: the kind's name.
        about: what a message holds, if its tensors have no fixed names.
        tensors: the tensors with fixed names; a message may also hold others.
        exact: whether a message holds no other tensors. The ledger trusts such kinds: a count that does not change
            costs nothing.
        network: whose named parameters, changes of these, or (`optimizer`) states beside a model's, a message holds.
        fixed_size: whether networks, classes and batch sizes determine the shapes. Messages of other kinds list their
            samples, and their length is the list's.
        way: how private data travel in it; None: no attack starts from it, or none is known.
        direct: whether it is computed from records without training, so that no private training covers it.
        scale: what the values of a client's answer are; None: it is no answer, or the kind does not say.
        declared: whether protocols declare it. Any protocol may send the others.
        read_as: the kind as which attacks read it; empty: as itself. Its messages hold the `k` most likely classes of
            each sample, and `fdaudit.adversary.top_answers` gives every class a value.
    """

    name: str
    about: str = ""
    tensors: tuple[TensorForm, ...] = ()
    exact: bool = False
    network: Network | None = None
    fixed_size: bool = False
    way: Way | None = None
    direct: bool = False
    scale: Scale | None = None
    declared: bool = True
    read_as: str = ""

    @property
    def text(self) -> str:
        """Return what a message of the kind holds, in words for people."""
        return self.about or ", ".join(tensor.text for tensor in self.tensors)

    @property
    def lists_samples(self) -> bool:
        """Return whether a message may number its samples, and is about all of them in order if it does not."""
        return any(tensor.name == "index" and tensor.when for tensor in self.tensors)

    def misfit(self, found: Shapes, known: Mapping[str, int] | None = None) -> str:
        """Return why a message's tensors are not those of the kind; empty if they are.

        Args:
            found: the message's tensors.
            known: sizes that letters must have, for example `{"C": 10}`.
        """
        names, lacking = list[str](), list[str]()
        for tensor in self.tensors:
            names.append(tensor.name)
            if not tensor.when and tensor.name not in found:
                lacking.append(tensor.name)
        if lacking:
            return f"it has no tensor {', '.join(lacking)}, which {self.name} has: {self.text}"
        for name in found:
            if self.exact and name not in names:
                return f"it has a tensor {name[:60]}, where {self.name} is: {self.text}"
        due = dict(known or {})
        for tensor in self.tensors:
            shape = found.get(tensor.name)
            if shape is None:
                continue
            sizes = tensor.sizes(shape)
            if sizes is None or any(due.get(letter, size) != size for letter, size in sizes.items()):
                return f"it has {tensor.name} {shape}, where {self.name} is: {self.text}"
            due |= sizes
        if due.get("k", 0) > due.get("C", math.inf):
            return f"it has {due['k']} of {due['C']} classes a row, where {self.name} is: {self.text}"
        return ""

    def sizes(self, found: Shapes) -> dict[str, int]:
        """Return the size of each letter in a message that fits: classes `C`, for example."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors:
            shape = found.get(tensor.name)
            if shape is not None:
                sizes |= tensor.sizes(shape) or {}
        return sizes
