"""Map names to classes that load late: listing and explaining a class do not run its code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from copy import deepcopy
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from fdaudit.errors import FdauditError, SpecError, nearest, plugin_line
from fdaudit.registry.cards import ExtensionCard
from fdaudit.registry.contract import CARDS, refusal, refuse_broken, stated_card
from fdaudit.registry.source import UNREADABLE, Described, described, found_module, line_of, source_of
from fdaudit.spec.code import imported_digest
from fdaudit.spec.trust import IMPORT, refuse_untrusted

__all__ = ["Registry", "loaded", "room_of"]

T_co = TypeVar("T_co", covariant=True)
C_co = TypeVar("C_co", bound=ExtensionCard, covariant=True)


def loaded(target: str, group: str = "", name: str = "") -> Any:
    """Return the class that `"module:Class"` names; this runs its module's code.

    Raises:
        SpecError: it cannot be loaded, or breaks the contract of `group`.
    """
    module, _, attribute = target.partition(":")
    if group not in CARDS:
        return getattr(importlib.import_module(module), attribute)
    card = _card(group, name, target)
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, type):
            raise TypeError(f"{attribute} is no class")
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        told = f"{type(error).__name__}: {error}" if plugin_line(error) else str(error)
        raise refusal(group, name, target, f"cannot be loaded ({told}{plugin_line(error)})") from error
    members: dict[str, Any] = {}
    for member in dir(found):
        if hasattr(found, member):
            members[member] = getattr(found, member)
    if members.get("card") != card:
        raise refusal(group, name, target, "has another card once it is loaded than its source states")
    settings = members.get("Config")
    base: type = importlib.import_module("fdaudit.config").Config
    if settings is not None and not (isinstance(settings, type) and issubclass(settings, base)):
        raise refusal(group, name, target, "has a Config that is no class below fdaudit.config.Config")
    refuse_broken(group, name, target, card, members, True)
    return found


def _described(group: str, name: str, target: str) -> Described:
    """Return what the source of a class states.

    Raises:
        SpecError: the source cannot be found, read or parsed, or defines no such class.
    """
    module, _, attribute = target.partition(":")
    try:
        return described(module, source_of(module)[1], attribute)
    except (*UNREADABLE, KeyError) as error:
        raise refusal(group, name, target, f"cannot be read ({error})") from error


def _card(group: str, name: str, target: str) -> ExtensionCard:
    """Return the card of a class from its source, after a check of all that the source shows.

    Raises:
        SpecError: the class breaks the contract of its group.
    """
    return _checked_card(group, name, target, _described(group, name, target))


@cache  # the same source gives the same `stated`
def _checked_card(group: str, name: str, target: str, stated: Described) -> ExtensionCard:
    card = stated_card(group, name, target, stated.card)
    refuse_broken(group, name, target, card, stated.members, stated.whole)
    return card


class Registry(Generic[T_co, C_co]):
    """The public names of one extension point. `import:module:Class` names a class that no package registers.

    Guarantees:
      * a duplicate name, from fdaudit or an installed package, is an error;
      * `describe` and `doc` parse the class's source for its card and docstring and import neither it nor torch;
      * a class that breaks the contract of its group is an error with its file and line. `describe` finds what
        the class's own module shows, and `load` all of it.

    Args:
        group: entry-point group through which installed packages add names, such as `fdaudit.protocols`.
        mapping: public name to `"module:Class"`.
    """

    def __init__(self, group: str, mapping: Mapping[str, str]) -> None:
        self.group, self._own = group, dict(mapping)

    @cached_property
    def _targets(self) -> dict[str, str]:
        targets = dict(self._own)
        for entry in entry_points(group=self.group):
            if entry.name in targets:
                raise FdauditError(
                    f"{self.group}: {entry.name!r} is both {targets[entry.name]} and {entry.value}. "
                    "Uninstall or rename one of them."
                )
            targets[entry.name] = entry.value
        return targets

    def names(self) -> list[str]:
        """Return all public names, sorted."""
        return sorted(self._targets)

    def load(self, name: str, field: str | None = None) -> type[T_co]:
        """Return the class behind a name.

        Raises:
            SpecError: the name is unknown, or untrusted code; `field` is the spec's field that gave it. Or the class
                breaks its contract.
        """
        refuse_untrusted(name, field or _field_of(self.group))
        found: type[T_co] = loaded(self.target(name, field), self.group, name)
        return found

    def target(self, name: str, field: str | None = None) -> str:
        """Return the location of the class behind a name, as `"module:Class"`; import nothing.

        Raises:
            SpecError: the name is unknown; `field` is the spec's field that gave it.
        """
        where = field or _field_of(self.group)
        if name.startswith(IMPORT):
            return _import_target(name, where)
        if name not in self._targets:
            raise SpecError(where, name, "is not known", nearest(name, self._targets))
        return self._targets[name]

    def called(self, name: str, field: str | None = None) -> str:
        """Return the public name of a class: a registered name as it is; for `import:`, what the class calls itself.

        Raises:
            SpecError: the name is unknown, or an imported class has the name of a registered one.
        """
        if not name.startswith(IMPORT):
            return name
        found = self.describe(name, field).name
        if found in self._targets:
            problem = f"calls itself {found!r}, which is {self._targets[found]}"
            raise SpecError(field or self.group, name, problem, "Give the class another name.")
        return found

    def source(self, name: str) -> tuple[str, ...]:
        """Return the SHA-256 of the code of a class that is not fdaudit's own: its file and all that it imports."""
        return () if self.owns(name) else (imported_digest(self.target(name).partition(":")[0]),)

    def place(self, name: str) -> tuple[str, int, str]:
        """Return the file of a class, the line where it begins, and the file's text; import nothing.

        Raises:
            SpecError: the name is unknown, or the file cannot be read.
        """
        target = self.target(name, "NAME")
        module, _, attribute = target.partition(":")
        try:
            path, source = source_of(module)
            return path, line_of(source, attribute), source
        except UNREADABLE as error:
            raise refusal(self.group, name, target, f"cannot be read ({error})") from error

    def owns(self, name: str) -> bool:
        """Return whether a name is fdaudit's own and not an installed package's."""
        return name in self._own

    def describe(self, name: str, field: str | None = None) -> C_co:
        """Return the card of a class, a new object each time.

        Raises:
            SpecError: the name is unknown, or the class's own source shows that it breaks its contract.
        """
        return cast("C_co", deepcopy(_card(self.group, name, self.target(name, field))))

    def doc(self, name: str, field: str | None = None) -> str:
        """Return the docstring of a class; empty if it has none.

        Raises:
            SpecError: as `describe` does.
        """
        target = self.target(name, field)
        _card(self.group, name, target)
        return _described(self.group, name, target).doc


def _field_of(group: str) -> str:
    return group.rpartition(".")[2].removesuffix("s")


def _import_target(name: str, where: str) -> str:
    """Return the `"module:Class"` that `import:module:Class` names; import nothing."""
    target = name.removeprefix(IMPORT)
    module, _, attribute = target.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise SpecError(where, name, "is no import path", "Write import:package.module:Class.")
    if found_module(module) is None:
        remedy = "Add its folder to PYTHONPATH, or correct the name."
        raise SpecError(where, name, f"names a module {module} that is not found", remedy)
    return target


def room_of(name: str) -> str:
    """Return the entry-point group that a class named by `import:` is made for, by its card.

    Raises:
        SpecError: the class cannot be read, or states no card.
    """
    module, _, attribute = _import_target(name, "NAME").partition(":")
    try:
        stated = described(module, source_of(module)[1], attribute).card
    except (*UNREADABLE, KeyError) as error:
        raise SpecError("NAME", name, f"cannot be read ({error})", "Name a class in a Python file.") from None
    called = "" if stated is None else stated.called
    for group, cards in CARDS.items():
        if called in {card.__name__ for card in cards}:
            return group
    usual = [cards[0].__name__ for cards in CARDS.values()]
    problem = "states no card, so that it is no protocol, attack or defence"
    raise SpecError("NAME", name, problem, f"Give the class a card: {', '.join(usual)}.")
