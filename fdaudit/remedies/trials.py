"""The remedies that can be tried, each as a change of a run's spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fdaudit.accounting.calibration import Shape, noise_for
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.remedies.tuning import TunableSettings
from fdaudit.spec.privacy import PresetSpec
from fdaudit.spec.schema import DefenseEntry, Spec

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["TOGETHER", "TRIALS", "RemedyTrial"]


@dataclass(frozen=True, kw_only=True)
class RemedyTrial:
    """A remedy that can be tried.

    Attributes:
        words: what is changed, in a clause; `{epsilon}` stands for the ε asked for.
        change: returns a spec of the case with the remedy added, or refuses with `SpecError`.
        clip: C to begin with where settings are tuned; None for a remedy without settings.
        same_training: whether it leaves what is trained, and so utility, as it is, except for other draws of noise.
    """

    words: str
    change: Callable[[Case, Spec, float, TunableSettings], Spec]
    clip: float | None = None
    same_training: bool = False


_TRIALS: dict[str, RemedyTrial] = {}
_Change = Callable[["Case", Spec, float, TunableSettings], Spec]


def _trial(
    name: str, words: str, *, clip: float | None = None, same_training: bool = False
) -> Callable[[_Change], _Change]:
    """Return a decorator that lists a change of a spec among the remedies."""

    def register(change: _Change) -> _Change:
        _TRIALS[name] = RemedyTrial(words=words, change=change, clip=clip, same_training=same_training)
        return change

    return register


@_trial("encrypted", "encrypted transport", same_training=True)
def _encrypted(case: Case, spec: Spec, epsilon: float, settings: TunableSettings) -> Spec:
    if spec.transport == "encrypted":
        raise SpecError("transport", "encrypted", "is encrypted already", "Nothing is left to try.")
    return spec.model_copy(update={"transport": "encrypted"})


@_trial("left-out", "without counts and shares that no noise covers")
def _left_out(case: Case, spec: Spec, epsilon: float, settings: TunableSettings) -> Spec:
    """Return a spec without the messages and shares that no noise covers."""
    combination = case.protocol.card.privacy.get("private", {})
    params = combination.get("params", {})
    withheld = tuple(combination.get("withhold", ()))
    if withheld == spec.withhold and all(case.settings.get(n) == v for n, v in params.items()):
        raise SpecError("protocol.name", case.protocol.card.name, "sends nothing that it can leave out", "")
    return _with_params(case, spec, params).model_copy(update={"withhold": withheld})


@_trial("no-questions", "no questions answered", same_training=True)
def _no_questions(case: Case, spec: Spec, epsilon: float, settings: TunableSettings) -> Spec:
    return spec.model_copy(update={"oracles": False})


@_trial("secure-sum", "an aggregator that shows only the sum or the votes")
def _secure_sum(case: Case, spec: Spec, epsilon: float, settings: TunableSettings) -> Spec:
    return _with_params(case, spec, _combination(case)["params"])


@_trial(
    "record-noise", "noise for records at ε = {epsilon:g}, by DP-SGD where records are trained on", clip=1.0
)
def _record_noise(case: Case, spec: Spec, epsilon: float, settings: TunableSettings) -> Spec:
    preset = PresetSpec(name="private", epsilon=epsilon, clip=settings.clip)
    return _with_params(case, spec, settings.params).model_copy(update={"preset": preset})


@_trial("client-noise", "noise for whole clients at ε = {epsilon:g}, on their sum or their votes", clip=1.0)
def _client_noise(case: Case, spec: Spec, epsilon: float, settings: TunableSettings) -> Spec:
    """Return a spec with noise for whole clients where their sum or their votes leave an aggregator."""
    combination = _combination(case)
    changed = _with_params(case, spec, {**combination["params"], **settings.params})
    config = validate(case.protocol.Config, changed.protocol.params)
    releases = 1
    for factor in combination["releases"]:
        releases *= len(case.public) if factor == "public" else getattr(config, factor)
    name, params = combination["name"], dict(combination["settings"])
    sigma, _ = noise_for(name, Shape(releases=releases), epsilon, spec.privacy.delta)
    if combination["clipped"]:
        params |= {"clip": settings.clip, "shares": spec.clients}
    params["sigma"] = sigma
    entry = DefenseEntry(kind=combination["kind"], sender=combination["sender"], name=name, params=params)
    privacy = spec.privacy.model_copy(update={"unit": "client"})
    return changed.model_copy(update={"defenses": (*spec.defenses, entry), "privacy": privacy})


def _combination(case: Case) -> Mapping[str, Any]:
    combination: Mapping[str, Any] | None = case.protocol.card.privacy.get("clients")
    if combination is None:
        problem = "has no aggregator that could sum or count what its clients send"
        raise SpecError("protocol.name", case.protocol.card.name, problem, "Try another remedy.")
    return combination


def _with_params(case: Case, spec: Spec, params: Mapping[str, Any]) -> Spec:
    """Return the spec with other settings of the protocol; those that it leaves out stay as they are."""
    now = case.protocol_config.model_dump(mode="json", exclude_unset=True)
    protocol = spec.protocol.model_copy(update={"params": {**now, **spec.protocol.params, **params}})
    return spec.model_copy(update={"protocol": protocol})


TRIALS: Mapping[str, RemedyTrial] = MappingProxyType(_TRIALS)
"""By name."""

TOGETHER = ("encrypted", "no-questions", "secure-sum", "record-noise")
"""Remedies that can be combined, in the order in which they are added."""
