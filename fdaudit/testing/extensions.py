"""What the checks of protocols, attacks and defences share: the class, its settings, global randomness."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from fdaudit.config import Config, validate
from fdaudit.errors import FdauditError, SpecError
from fdaudit.parallel.randomness import generator_states, seeded_randomness
from fdaudit.registry import Registry, loaded
from fdaudit.registry.contract import CARDS, refuse_broken
from fdaudit.spec.trust import IMPORT, name_code

__all__ = [
    "check_settings",
    "during",
    "fail",
    "global_seed",
    "has_cuda",
    "load_extension",
    "read_settings",
    "torch_defaults_kept",
]

T = TypeVar("T")
_WRONG: tuple[Any, ...] = ([["no", "such", "value"]], {"no such key": [None]})
"""Values of which no field accepts both."""


def fail(name: str, problem: str, cause: Exception | None = None) -> NoReturn:
    """Raise an AssertionError of one sentence about an extension.

    Raises:
        AssertionError: always.
    """
    raise AssertionError(f"{name}: {problem}") from cause


@contextmanager
def during(name: str, doing: str) -> Iterator[None]:
    """Turn an exception of an extension into an AssertionError that says what it was asked to do."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        fail(name, f"{doing} ends with {type(error).__name__}: {error}", cause=error)


@contextmanager
def global_seed(name: str, seed: int, first: bool = False) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and fail if the block moves one of them.

    A block that runs for the `first` time may import libraries, some of which draw when they are loaded.
    """
    with seeded_randomness(seed):
        before = generator_states()
        yield
        if generator_states() != before and not first:
            fail(
                name,
                "draws from a global generator of torch, NumPy or Python; pass a generator to every draw.",
            )


@contextmanager
def torch_defaults_kept(name: str) -> Iterator[None]:
    """Fail if the block leaves PyTorch with another default type, or with gradients turned on or off; restore both."""
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        after = torch.get_default_dtype(), torch.is_grad_enabled()
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        if after != before:
            fail(
                name,
                "changes PyTorch's default number type, or turns gradients on or off for the whole process.",
            )


def has_cuda(name: str) -> bool:
    """Return whether an extension can be checked on CUDA; warn if there is no device."""
    if torch.cuda.is_available():
        return True
    warnings.warn(f"{name} was not checked on CUDA, because this machine has no device.", stacklevel=4)
    return False


def load_extension(extension: type[T] | str, registry: Registry[T, Any]) -> type[T]:
    """Return the class of an extension, which keeps the contract of its room.

    Args:
        extension: the class, its public name, or `import:module:Class`.
        registry: the registry of its room.

    Raises:
        AssertionError: it breaks the contract.
    """
    try:
        if isinstance(extension, str):
            name_code(extension)
            return registry.load(extension)
        place = f"{extension.__module__}:{extension.__qualname__}"
        card = getattr(extension, "card", None)
        cards = CARDS[registry.group]
        if not isinstance(card, cards):
            fail(extension.__qualname__, f"has no card, which is {cards[0].__name__}(name=…, …).")
        module = sys.modules.get(extension.__module__)
        if getattr(module, extension.__qualname__, None) is extension and extension.__module__ != "__main__":
            loaded(place, registry.group, f"{IMPORT}{place}")
        members: dict[str, Any] = {}
        for name in dir(extension):
            if hasattr(extension, name):
                members[name] = getattr(extension, name)
        refuse_broken(registry.group, f"{IMPORT}{place}", place, card, members, True)
        return extension
    except FdauditError as error:
        raise AssertionError(str(error)) from error


def read_settings(name: str, config: type[Config], params: Mapping[str, Any]) -> Any:
    """Return settings.

    Raises:
        AssertionError: they are refused.
    """
    try:
        return validate(config, params, "params")
    except SpecError as error:
        raise AssertionError(f"{name}: give other params ({error})") from error


def check_settings(name: str, config: type[Config], params: Mapping[str, Any]) -> None:
    """Check that wrong settings are refused by a SpecError that names the field.

    Args:
        name: of the extension.
        config: the class of its settings.
        params: settings that it accepts.

    Raises:
        AssertionError: a wrong setting is accepted, or ends with another error.
    """
    if not config.model_config.get("frozen"):
        fail(
            name,
            "has settings that can be changed after their check; derive Config from fdaudit.config.Config.",
        )
    if not _refuses(name, config, {**params, "no_such_setting": 1}, "no_such_setting"):
        fail(name, "accepts an unknown setting; derive Config from fdaudit.config.Config.")
    for field in config.model_fields:
        refused = [_refuses(name, config, {**params, field: value}, field) for value in _WRONG]
        if not any(refused):
            fail(name, f"accepts any value for the setting {field}; give it a type.")


def _refuses(name: str, config: type[Config], values: Mapping[str, Any], field: str) -> bool:
    """Return whether these settings are refused, by an error that names the field."""
    try:
        validate(config, values)
    except SpecError as error:
        named = [error.field, *(other.field for other in error.others)]
        if any(one.split(".")[0] == field for one in named):
            return True
        fail(name, f"refuses a wrong value of {field} with an error about {error.field}; name the field.")
    except Exception as error:
        fail(
            name, f"ends with {type(error).__name__} where {field} is wrong; raise a SpecError or ValueError."
        )
    return False
