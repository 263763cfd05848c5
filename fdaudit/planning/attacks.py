"""Attacks of a run, with their settings under its profile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fdaudit import attacks
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.config import validate
from fdaudit.errors import Mistakes, SpecError, nearest
from fdaudit.isolation.trials import settings_of
from fdaudit.spec.schema import AttackSpec, Spec
from fdaudit.spec.trust import IMPORT, refuse_untrusted

__all__ = ["plan_attack", "plan_attacks"]


def plan_attacks(spec: Spec) -> tuple[AttackPlan, ...]:
    """Plan every known attack; the settings of one that the spec does not ask for are None.

    Raises:
        SpecError: an attack is unknown, is asked for twice, or has a setting that is unknown or out of range; or one
            that comes first is not asked for.
    """
    shipped = attacks.REGISTRY.names()
    if spec.attacks == "all":
        _refuse_unasked(spec, shipped)
        with_defaults = []
        for name in shipped:
            with_defaults.append(plan_attack(name, {}, spec, "attacks.0.params", spec.adversaries))
        return tuple(with_defaults)
    entries: dict[str, tuple[int, AttackSpec]] = {}
    mistakes = Mistakes()
    for number, entry in enumerate(spec.attacks):
        field = f"attacks.{number}.name"
        with mistakes.apart():
            if entry.name not in shipped and not entry.name.startswith(IMPORT):
                raise SpecError(field, entry.name, "is not a known attack", nearest(entry.name, shipped))
            name = attacks.REGISTRY.called(entry.name, field)
            if name in entries:
                raise SpecError(field, entry.name, "is asked for twice", "Keep one of them.")
            entries[name] = number, entry
    # In the order of the attacks that come with fdaudit; then those from elsewhere.
    plans = {name: _attack_plan(name, None, spec.adversaries) for name in shipped}
    for name, (number, entry) in entries.items():
        where = f"attacks.{number}.params"
        adversaries = entry.adversaries or spec.adversaries
        with mistakes.apart():
            plans[name] = plan_attack(entry.name, entry.params, spec, where, adversaries)
    with mistakes.apart():
        _refuse_unasked(spec, entries)
    mistakes.refuse()
    return tuple(plans.values())


def _refuse_unasked(spec: Spec, asked: Collection[str]) -> None:
    """Refuse an attack that is to come first and is not asked for."""
    for number, name in enumerate(spec.limits.first):
        if name not in asked:
            raise SpecError(f"limits.first.{number}", name, "is not asked for", nearest(name, asked))


def plan_attack(
    name: str, params: Mapping[str, Any], spec: Spec, where: str, adversaries: tuple[str, ...]
) -> AttackPlan:
    """Plan one attack under the spec's profile; the user's own settings override the profile's.

    Raises:
        SpecError: the attack or one of its settings is unknown or out of range, or the name is untrusted code.
    """
    registry = attacks.REGISTRY
    refuse_untrusted(name, "attack")
    if not registry.owns(name):
        settings = settings_of(name, registry.target(name, "attack"), spec.profile, params, where)
        return _attack_plan(name, settings, adversaries)
    cls = registry.load(name, "attack")
    config = validate(cls.Config, {**cls.card.profiles[spec.profile], **params}, where)
    return _attack_plan(name, config.model_dump(mode="json"), adversaries)


def _attack_plan(name: str, params: Mapping[str, Any] | None, adversaries: tuple[str, ...]) -> AttackPlan:
    registry = attacks.REGISTRY
    return AttackPlan(
        name=registry.called(name, "attack"),
        asked=name,
        card=registry.describe(name),
        target=registry.target(name),
        own=registry.owns(name),
        params=params,
        adversaries=adversaries,
    )
