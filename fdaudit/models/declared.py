"""A generator that a protocol declares, so that others can build it and load its parameters.

A protocol's `generator` names the class and where its arguments come from:

    generator = {
        "build": "acme.networks:Generator",
        "arguments": {"latent": "latent", "width": 64, "output_shape": "input_shape", "classes": "classes"},
        "takes": ("noise", "class"),
        "makes": "images",
    }

An argument's text names a setting of the protocol, or `input_shape`, `classes` or `features`; other values stand for
themselves. The module is called with noise (n, latent), and with classes (n,) if it takes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fdaudit.errors import SpecError, plugin_line
from fdaudit.models.network import seed_from, seeded

__all__ = ["GeneratorCard", "generator_card"]

_FIELD = "protocol.generator"
_TAKES = (("noise",), ("noise", "class"))
_MAKES = ("images", "features")


@dataclass(frozen=True, kw_only=True)
class GeneratorCard:
    """How to build a protocol's generator; plain values only.

    Attributes:
        build: the class, as `"module:Class"`.
        arguments: of its constructor, by name.
        latent: length of a noise vector.
        classes: number of classes C.
        takes: what the module is called with.
        makes: `images` (n, c, h, w) in [0, 1], or `features` (n, d) of the audited network.
    """

    build: str
    arguments: Mapping[str, Any]
    latent: int
    classes: int
    takes: tuple[str, ...]
    makes: str

    def module(self, generator: torch.Generator) -> nn.Module:
        """Return a new generator on the CPU; one draw from `generator` seeds its initial weights.

        Raises:
            SpecError: the class cannot be built.
        """
        path, _, attribute = self.build.partition(":")
        try:
            constructor = getattr(importlib.import_module(path), attribute)
            if not (isinstance(constructor, type) and issubclass(constructor, nn.Module)):
                raise TypeError("it is no class of networks")
            network = seeded(seed_from(generator), lambda: constructor(**self.arguments))
        except Exception as error:  # foreign code may raise anything
            problem = f"cannot be made ({type(error).__name__}: {error}){plugin_line(error)}"
            raise SpecError(_FIELD, self.build, problem, "Check `build` and `arguments`.") from error
        return network

    def misfit(self, sent: Mapping[str, tuple[int, ...] | None]) -> str:
        """Return why tensors of these shapes are not this generator's parameters; empty if they are."""
        try:
            module = self.module(torch.Generator().manual_seed(0))
        except SpecError as error:
            return f"its generator {error.problem}"
        shapes: dict[str, tuple[int, ...]] = {}
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                shapes[name] = tuple(tensor.shape)
        for name in shapes:
            if name not in sent:
                return f"it lacks {name} of the declared generator {self.build}"
        for name in sent:
            if name not in shapes:
                return f"the declared generator {self.build} has no {name}"
        for name, shape in sent.items():
            if shape not in (None, shapes[name]):
                return f"{name} is {shape}, in the declared generator {shapes[name]}"
        return ""

    def drawn(
        self, parameters: Mapping[str, Tensor], count: int, generator: torch.Generator, at_once: int
    ) -> Tensor:
        """Return `count` samples of a generator with these parameters, with all classes equally likely."""
        module = self.module(torch.Generator().manual_seed(0)).eval()
        module.load_state_dict(dict(parameters), strict=False)  # counters are not sent
        classes = torch.arange(count) % max(self.classes, 1)
        samples = []
        with torch.no_grad():
            for y in classes.split(at_once):
                z = torch.randn(len(y), self.latent, generator=generator)
                inputs = (z, y) if "class" in self.takes else (z,)
                samples.append(module(*inputs))
        return torch.cat(samples)


def generator_card(
    declared: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    *,
    input_shape: tuple[int, ...],
    classes: int,
    features: int,
) -> GeneratorCard | None:
    """Return the generator that a protocol declares, with its arguments' values; None if it declares none.

    Args:
        declared: the class attribute `generator`.
        settings: the protocol's settings, by name.
        input_shape: (c, h, w) of an image.
        classes: number of classes C.
        features: number of features of the audited network; 0 if it has none.

    Raises:
        SpecError: the declaration is wrong.
    """
    if declared is None:
        return None
    remedy = "docs/extending.md shows a declaration."
    keys = {"build", "arguments", "takes", "makes", "latent"}
    if wrong := sorted(({"build", "arguments"} - declared.keys()) | (declared.keys() - keys)):
        raise SpecError(_FIELD, wrong[0], "is missing or unknown in the declaration", remedy)
    offered = {**settings, "input_shape": input_shape, "classes": classes, "features": features}
    arguments = {}
    for name, value in declared["arguments"].items():
        if isinstance(value, str) and value not in offered:
            raise SpecError(f"{_FIELD}.arguments.{name}", value, "is no setting of the protocol", remedy)
        arguments[name] = offered[value] if isinstance(value, str) else value
    takes, makes = tuple(declared.get("takes", ("noise",))), declared.get("makes", "images")
    if takes not in _TAKES or makes not in _MAKES:
        raise SpecError(_FIELD, [*takes, makes], "is not what a generator takes or makes", remedy)
    latent = declared.get("latent", "latent")
    length = offered.get(latent) if isinstance(latent, str) else latent
    if not isinstance(length, int) or length < 1:
        raise SpecError(f"{_FIELD}.latent", latent, "is no length of the noise", remedy)
    return GeneratorCard(
        build=str(declared["build"]),
        arguments=arguments,
        latent=length,
        classes=classes,
        takes=takes,
        makes=makes,
    )
