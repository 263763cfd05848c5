"""The grid of a sweep: axes of spec fragments over one base, and the runs that they describe.

Guarantees:
  * a run's key depends on its complete spec alone, not on the names of the grid or an axis;
  * there is one run without a defence for each protocol and seed, independent of the number of defences;
  * an impossible combination is a run with a reason, never a gap.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.config import Config, validate
from fdaudit.errors import SpecError, nearest
from fdaudit.planning.refusals import refuse_unknown_adversaries
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.schema import Spec
from fdaudit.spec.trust import refuse_code
from fdaudit.storage.digests import canonical
from fdaudit.sweeps.levels import PLACEHOLDER, UNDEFENDED, asks_for_epsilon, filled, in_words

__all__ = ["DefenceAxis", "Grid", "GridRun", "ProtocolAxis", "expand", "load_grid"]

_MOST_RUNS = 10_000

Text = Annotated[str, Field(min_length=1, max_length=200)]
Fragment = dict[str, Any]


class ProtocolAxis(Config):
    """A protocol, and its changes to the base spec."""

    name: Text
    """A known protocol; `fdaudit list` names them."""
    label: Text | None = None
    """Its name in tables and figures; default: `name`."""
    params: Fragment = Field(default_factory=dict)
    """The protocol's own settings."""
    spec: Fragment = Field(default_factory=dict)
    """Fields of the spec that are set for this protocol, merged over the base."""

    @property
    def called(self) -> str:
        """Return its name on the axis."""
        return self.label or self.name


class DefenceAxis(Config):
    """A defence, with its settings for each protocol and ε."""

    name: Text
    """What it is called."""
    spec: Fragment | None = None
    """Fields of the spec for every protocol that is not under `protocols`."""
    protocols: dict[Text, Fragment] = Field(default_factory=dict)
    """Fields of the spec for one protocol, by its name on the axis."""
    not_applicable: dict[Text, Text] = Field(default_factory=dict)
    """Protocols for which there is no such defence, with the reason."""


class Grid(Config):
    """A sweep: protocols x defences x ε x seeds."""

    sweep: Literal[1]
    """Version of this format."""
    name: Text = "sweep"
    """A name for people."""
    base: Fragment
    """A spec, or the path of one beside the grid: what all runs have in common."""
    protocols: tuple[ProtocolAxis, ...] = Field(min_length=1)
    """The protocols."""
    defences: tuple[DefenceAxis, ...] = ()
    """The defences."""
    epsilon: tuple[Annotated[float, Field(gt=0)] | Literal["inf"], ...] = Field(("inf",), min_length=1)
    """Target values of ε for the defences; `inf` is the run without a defence."""
    adversary: Text | None = None
    """The adversary whose ε, by the ledger, is the curves' axis; default: the server, if there is one."""
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = Field(min_length=1)
    """Seeds: one gives all protocols and defences the same records in the same hands."""
    undefended: Fragment = Field(default_factory=dict)
    """Fields of the spec that are set where there is no defence, such as `references`."""
    choose: Literal["nothing", "utility"] = "nothing"
    """`utility`: name the run whose final model is best, and state ε of all runs together, from which it was chosen."""
    keep: Literal["results", "runs"] = "results"
    """Files that stay of a finished run: its results, or everything, transcript and vault included."""

    @model_validator(mode="after")
    def _axes(self) -> Self:
        called = [protocol.called for protocol in self.protocols]
        axes: dict[str, Sequence[Any]] = {
            "protocols": called,
            "defences": [defence.name for defence in self.defences],
            "epsilon": self.epsilon,
            "seeds": self.seeds,
        }
        for axis, values in axes.items():
            for value, times in Counter(values).items():
                if times > 1:
                    raise SpecError(axis, value, "is given twice", "Give each once; a label tells two apart.")
        for number, defence in enumerate(self.defences):
            self._check_defence(f"defences.{number}", defence, called)
        if not self.defences and self.epsilon != ("inf",):
            raise SpecError("epsilon", self.epsilon, "needs a defence", "Add defences, or leave only inf.")
        if self.defences and self.epsilon == ("inf",):
            raise SpecError(
                "defences", len(self.defences), "are never used at ε = inf", "Add finite values of ε."
            )
        if self.size > _MOST_RUNS:
            raise SpecError("sweep", self.size, f"is more than {_MOST_RUNS:,} runs", "Shorten an axis.")
        return self

    @staticmethod
    def _check_defence(where: str, defence: DefenceAxis, called: list[str]) -> None:
        if defence.name == UNDEFENDED:
            raise SpecError(
                f"{where}.name", defence.name, "names the run without a defence", "Choose another."
            )
        for part in ("protocols", "not_applicable"):
            for name in getattr(defence, part):
                if name not in called:
                    problem = "is no protocol of this grid"
                    raise SpecError(f"{where}.{part}", name, problem, nearest(name, called))
        for name in called:
            if name in defence.not_applicable and name in defence.protocols:
                problem = "has a spec and a reason why there is none"
                raise SpecError(f"{where}.not_applicable", name, problem, "Keep one of them.")
            if defence.spec is None and name not in defence.protocols and name not in defence.not_applicable:
                problem = "is left open"
                remedy = "Give a spec, or say under not_applicable why there is none."
                raise SpecError(f"{where}.protocols", name, problem, remedy)

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the values of ε as numbers, in the grid's order."""
        return tuple(map(float, self.epsilon))

    @property
    def size(self) -> int:
        """Return the number of runs, including those that do not apply."""
        finite = sum(not math.isinf(e) for e in self.levels)
        each = len(self.defences) * finite + (len(self.levels) - finite)
        return len(self.protocols) * len(self.seeds) * each


@dataclass(frozen=True, kw_only=True)
class GridRun:
    """One point of a grid.

    Attributes:
        protocol: its name on the axis.
        defence: its name, `none` if ε is infinite.
        epsilon: the level that the defence is asked for.
        seed: the run's seed.
        spec: the run's spec; None if the combination is impossible, with a `reason`.
        reason: why the combination is impossible.
        explicit: whether the grid gives a spec of the defence for this protocol by name.
        asked: whether the level is a target ε, and not another setting.
    """

    protocol: str
    defence: str
    epsilon: float
    seed: int
    spec: Spec | None = None
    reason: str = ""
    explicit: bool = True
    asked: bool = False

    @property
    def called(self) -> str:
        """Return the run in words."""
        return in_words(self.protocol, self.defence, self.epsilon, self.seed, asked=self.asked)

    @property
    def key(self) -> str:
        """Return 16 hexadecimal digits of the SHA-256 of the spec without its name, or of the axes without a spec."""
        if self.spec is None:
            axes: Any = [self.protocol, self.defence, repr(self.epsilon), self.seed, "not-applicable"]
        else:
            axes = self.spec.model_dump(mode="json", exclude={"name"})
        return hashlib.sha256(canonical(axes)).hexdigest()[:16]


# -- reading ---------------------------------------------------------------------------------------------------


def load_grid(source: Path | str | Mapping[str, Any]) -> Grid:
    """Return a grid from a YAML file, or from a mapping whose `base` is one.

    Raises:
        SpecError: the file or the base is missing or not YAML, a field is wrong, or names code that is not trusted.
    """
    if isinstance(source, Mapping):
        refuse_code(source, "grid")
        return validate(Grid, _plain(dict(source)))
    path = Path(source)
    value = read_yaml(path, "grid")
    if not isinstance(value, dict):
        problem = "is empty" if value is None else "is not a mapping"
        raise SpecError("grid", str(source), problem, "Write `key: value` lines.")
    if "sweep" not in value and "base" not in value and value.keys() <= Spec.model_fields.keys():
        raise SpecError("grid", str(source), "is the spec of one run", "Give it to `fdaudit run`.")
    if isinstance(value.get("base"), str):
        name = value["base"]
        pure = PurePath(name)
        inside = not pure.is_absolute() and ".." not in pure.parts and "\0" not in name
        # Other than `Path.resolve`, this follows links in a circle without an error.
        if not inside or not Path(os.path.realpath(path.parent / name)).is_relative_to(path.parent.resolve()):
            problem = "does not lie beside the grid"
            raise SpecError("base", name, problem, "Give a path below the grid's own directory.")
        value = {**value, "base": read_yaml(path.parent / name, "base")}
    refuse_code(value, "grid")
    return validate(Grid, _plain(value))


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Write infinity as `inf`, because JSON has no infinity; refuse values that are not an ε."""
    levels = value.get("epsilon")
    if not isinstance(levels, list | tuple):
        return value
    words = ["inf" if isinstance(e, float) and e == math.inf else e for e in levels]
    for number, level in enumerate(words):
        is_level = level == "inf" or (
            isinstance(level, int | float) and not isinstance(level, bool) and level > 0
        )
        if not is_level:
            raise SpecError(f"epsilon.{number}", level, "is no ε", "Give a number above 0, or inf.")
    return {**value, "epsilon": words}


# -- expansion -------------------------------------------------------------------------------------------------


def expand(grid: Grid) -> tuple[GridRun, ...]:
    """Return every run of a grid, those without a defence first, seeds innermost.

    Raises:
        SpecError: a run's spec is wrong, two runs are the same, or no run has the axis's adversary.
    """
    runs = tuple(_runs(grid))
    names = {"server", "aggregator"}  # parties other than clients always have a ledger
    for run in runs:
        if run.spec is not None:
            names.update(run.spec.adversaries)
    if grid.adversary is not None and grid.adversary not in names:
        problem = "is an adversary of no run of this grid"
        raise SpecError("adversary", grid.adversary, problem, nearest(grid.adversary, names))
    by_key: dict[str, GridRun] = {}
    for run in runs:
        other = by_key.setdefault(run.key, run)
        if other is not run:
            problem = f"is the same run as {other.called!r}"
            remedy = f"Let its spec say what differs; {PLACEHOLDER!r} is ε."
            raise SpecError("grid", run.called, problem, remedy)
    return runs


def _runs(grid: Grid) -> Iterator[GridRun]:
    _refuse_axes_in("base", grid.base, ("seed", "protocol"))
    _refuse_axes_in("undefended", grid.undefended, ("seed",))
    levels = sorted(grid.levels, reverse=True)
    for epsilon in levels:
        defences = [None] if math.isinf(epsilon) else list(grid.defences)
        for defence in defences:
            for protocol in grid.protocols:
                for seed in grid.seeds:
                    yield _run(grid, protocol, defence, epsilon, seed)


def _run(
    grid: Grid, protocol: ProtocolAxis, defence: DefenceAxis | None, epsilon: float, seed: int
) -> GridRun:
    axes: dict[str, Any] = {"protocol": protocol.called, "epsilon": epsilon, "seed": seed}
    where = f"protocols.{[p.called for p in grid.protocols].index(protocol.called)}.spec"
    _refuse_axes_in(where, protocol.spec, ("seed", "protocol"))
    named_protocol = {"protocol": {"name": protocol.name, "params": protocol.params}}
    merged = _merge(_merge(grid.base, named_protocol), protocol.spec)
    if defence is None:
        settings, bare = _merge(merged, grid.undefended), GridRun(**axes, defence=UNDEFENDED)
    elif protocol.called in defence.not_applicable:
        return GridRun(**axes, defence=defence.name, reason=defence.not_applicable[protocol.called])
    else:
        where, fragment = f"defences.{defence.name}.spec", defence.spec or {}
        explicit = protocol.called in defence.protocols
        if explicit:
            where = f"defences.{defence.name}.protocols.{protocol.called}"
            fragment = defence.protocols[protocol.called]
        _refuse_axes_in(where, fragment, ("seed",))
        delta = _delta(_merge(merged, fragment))
        settings = _merge(merged, filled(fragment, epsilon, delta, where))
        asks = asks_for_epsilon(fragment)
        bare = GridRun(**axes, defence=defence.name, explicit=explicit, asked=asks)
    values = {
        **settings,
        "name": f"{grid.name}: {bare.called}",
        "seed": seed,
        "threads": settings.get("threads") or 1,
    }
    try:
        spec = validate(Spec, values)
        refuse_unknown_adversaries(spec)
    except SpecError as error:
        problem = f"{error.problem} (in {bare.called})"
        raise SpecError(error.field, error.value, problem, error.remedy) from None
    return replace(bare, spec=spec)


def _refuse_axes_in(where: str, fragment: Mapping[str, Any], axes: tuple[str, ...]) -> None:
    for axis in axes:
        if axis in fragment:
            problem = f"is an axis of the grid, and has no place in {where.split('.')[0]}"
            raise SpecError(f"{where}.{axis}", fragment[axis], problem, f"Say it under {axis}s.")


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; other values are replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _delta(spec: Mapping[str, Any]) -> float:
    privacy = spec.get("privacy")
    if isinstance(privacy, Mapping):
        delta = privacy.get("delta")
        if isinstance(delta, float) and 0 < delta < 1:
            return delta
    return 1e-5
