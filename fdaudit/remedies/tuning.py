"""Choose the settings of a defence on auxiliary records, as whoever deploys it would.

A federation of auxiliary records stands in for the real one. They are shared out by the run's own rule, and every
client repeats its own until it holds as many as clients do on average, so noise weighs as much as in the run. No
setting is chosen by a result on private records: the choice costs no privacy (Papernot & Steinke 2022).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from fdaudit.audit.utility import measurement_of
from fdaudit.data.partition import partition
from fdaudit.errors import DataError, FdauditError, SpecError
from fdaudit.federation.networks import Trainers
from fdaudit.federation.rehearsal import networks_of, rehearse
from fdaudit.rng import SecretStream, child_seed
from fdaudit.spec.schema import PartitionSpec
from fdaudit.storage.scratch import scratch

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.federation.protocol import FederatedProtocol
    from fdaudit.planning.case import Case
    from fdaudit.progress import Tick
    from fdaudit.training.trainer import Parameters

__all__ = ["FOLDS", "StandIn", "TunableSettings", "Tuned", "mean_utility", "tune"]

FOLDS = 2
"""Parts of the auxiliary records: each is measured on once, after training on the others."""
_LENGTHS = ("rounds", "local_epochs", "local_steps", "warm_up_steps")
"""Settings that say for how long clients train on their records."""
_START = 0.125
"""Share of the run's own length with which the search begins, in batches of all records: noise that is added seldom,
and to large sums, does least harm (De et al. 2022).
"""
_FACTORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"lr": (4.0, 0.25), "length": (2.0, 0.5), "clip": (3.0, 0.3), "batch": (0.5, 0.25)}
)
"""What each setting is multiplied by."""
_ORDER = ("lr", "lr", "length", "lr", "clip", "length", "lr", "batch")
"""What is varied, in turn, from the best settings so far."""


@dataclass(frozen=True, kw_only=True)
class TunableSettings:
    """Settings of the protocol, by name, and the clip C of its defence."""

    params: Mapping[str, Any]
    clip: float

    @property
    def words(self) -> str:
        """Return the settings in words."""
        values = {**self.params, "clip": self.clip}
        return ", ".join(f"{name} {value:g}" for name, value in values.items())


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The chosen settings, their utility on auxiliary records, and how many settings were tried."""

    settings: TunableSettings
    utility: float
    tried: int


def tune(
    case: Case, defended: Callable[[TunableSettings], Case], clip: float, until: float, tick: Tick
) -> Tuned:
    """Return the settings with the highest utility on auxiliary records among those that there was time for.

    Args:
        case: the run's.
        defended: returns the case of a defended run with given settings.
        clip: C to begin with.
        until: when to stop, by `time.monotonic`; one setting is tried in any case.
        tick: progress.

    Raises:
        FdauditError: no setting could be tried.
    """
    stand_in = StandIn.of(case)
    names = _names(case)
    utilities: dict[TunableSettings, float] = {}
    longest = 0.0
    refused: list[SpecError] = []

    def measure(settings: TunableSettings) -> None:
        nonlocal longest
        start = time.monotonic()
        if settings in utilities or (utilities and start + longest > until):
            return
        try:
            utilities[settings] = stand_in.utility(defended(settings))
        except SpecError as error:  # the protocol or the defence does not allow them
            refused.append(error)
            return
        longest = max(longest, time.monotonic() - start)
        tick("tuning on auxiliary records", len(utilities), 0)

    def best() -> TunableSettings:
        return max(utilities, key=lambda settings: utilities[settings])

    params = _Params()
    for name in names.values():
        params[name] = getattr(case.protocol_config, name)
    usual = TunableSettings(params=params, clip=clip)
    measure(_first(usual, names, stand_in.records))
    if not utilities:
        measure(usual)
    if not utilities:
        raise refused[-1]
    for varied in _ORDER:
        for settings in _variants(best(), varied, names):
            measure(settings)
    measure(usual)
    return Tuned(settings=best(), utility=utilities[best()], tried=len(utilities))


class _Params(dict[str, Any]):
    """Settings by name, which can be looked up by."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _names(case: Case) -> dict[str, str]:
    """Return the protocol's names of batch size, length and learning rate, as far as it has them."""
    config, trains = case.protocol_config, case.protocol.card.trains
    names: dict[str, str] = {}
    if "model" in trains:
        names["batch"] = trains["model"]
    for name in _LENGTHS:
        if name in type(config).model_fields and (getattr(config, name) or 0) > 1:
            names["length"] = name
            break
    if "lr" in type(config).model_fields:
        names["lr"] = "lr"
    return names


def _first(usual: TunableSettings, names: Mapping[str, str], records: int) -> TunableSettings:
    """Return where the search begins: batches of all records, and few of them."""
    first = _Params(usual.params)
    if "batch" in names:
        first[names["batch"]] = records
    if "length" in names:
        first[names["length"]] = max(1, round(first[names["length"]] * _START))
    return replace(usual, params=first)


def _variants(best: TunableSettings, varied: str, names: Mapping[str, str]) -> Iterator[TunableSettings]:
    """Yield settings that differ from the best ones in one respect."""
    for factor in _FACTORS[varied]:
        if varied == "clip":
            yield replace(best, clip=best.clip * factor)
        elif varied in names:
            name = names[varied]
            value = best.params[name] * factor
            if varied != "lr":
                value = max(1, round(value))
            yield replace(best, params=_Params({**best.params, name: value}))


@dataclass(frozen=True, kw_only=True, eq=False)
class StandIn:
    """A federation of auxiliary records in place of the clients'.

    Attributes:
        folds: for each fold, the records (x, y) of each client, and those that are measured on.
        records: how many records each client holds.
        seed: of its runs.
    """

    folds: tuple[tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]], ...]
    records: int
    seed: int

    @classmethod
    def of(cls, case: Case) -> StandIn:
        """Return the stand-in of a run.

        Raises:
            DataError: there are too few auxiliary records.
        """
        x, y = case.auxiliary
        clients = case.spec.clients
        if len(y) < FOLDS * clients:
            remedy = "Set more records aside under `splits.auxiliary`."
            raise DataError("splits.auxiliary", len(y), "are too few records to tune on", remedy)
        records = round(sum(len(client.train) for client in case.splits.clients) / clients)
        draws = SecretStream(case.secrets.working_seed.to_bytes(16, "big"), "remedies", "folds")
        order = torch.from_numpy(draws.permutation(len(y)))
        folds = []
        for fold in range(FOLDS):
            held_out = order[fold::FOLDS]
            used = order[~torch.isin(order, held_out)]
            # By the run's rule, or evenly where it cannot share out so few records.
            for rule in (case.spec.partition, PartitionSpec()):
                try:
                    parts = partition(y[used], clients, rule, draws, case.dataset.classes)
                    break
                except DataError as error:
                    problem = error
            else:
                raise problem
            data = []
            for part in parts:
                repetitions = math.ceil(records / len(part))
                rows = used[part.repeat(repetitions)[:records]]
                data.append((x[rows], y[rows]))
            folds.append((data, (x[held_out], y[held_out])))
        return cls(folds=tuple(folds), records=records, seed=child_seed(case.seed, "remedies"))

    def utility(self, case: Case) -> float:
        """Return the utility of the server's model, or the mean of the clients', on records held out; 0 if it fails."""
        values = []
        try:
            for data, held_out in self.folds:
                models: dict[str, Parameters] = {}
                with scratch("remedy") as folder:
                    rehearse(
                        folder / "transcript",
                        protocol=case.protocol,
                        config=case.protocol_config,
                        common=case.common,
                        data=data,
                        seed=self.seed,
                        defenses=case.defenses,
                        training=case.training,
                        withheld=case.spec.withhold,
                        models=models,
                    )
                values.append(mean_utility(case, case.protocol, models, held_out))
        except FdauditError:
            return 0.0  # it diverges, or the defence allows no such settings
        return sum(values) / len(values)


def mean_utility(
    case: Case,
    protocol: type[FederatedProtocol],
    models: Mapping[str, Parameters],
    held_out: tuple[Tensor, Tensor],
) -> float:
    """Return the utility of the server's model, or the mean of the clients', on records (x, y) held out."""
    parties = ["server"]
    if "server" not in models:
        parties = [name for name in models if name.startswith("client/")]
    trainers = Trainers(networks_of(protocol, case.common.networks), case.execution, tuple(models))
    x, y = held_out
    measurement = measurement_of(case.dataset.task)
    total = 0.0
    for party in parties:
        outputs = trainers[party].predict(models[party], x)
        value, *_ = measurement.measured(outputs, y, case)
        total += float(value)
    return total / len(parties)
