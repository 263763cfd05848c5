"""The simulation: runs a protocol over the wire round by round; it can resume after any round."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fdaudit.accounting.budget import BudgetMeter, BudgetMeters, departing_groups
from fdaudit.audit.utility import measurement_of
from fdaudit.federation.checkpoints import Checkpoints
from fdaudit.federation.networks import Trainers
from fdaudit.federation.protocol import FederatedProtocol, PartyData, ProtocolConfig, Round
from fdaudit.federation.rehearsal import NoWire, kinds_of, networks_of, setting_of
from fdaudit.handout.oracle_access import exposed
from fdaudit.planning.case import Case
from fdaudit.planning.message_sizes import fixed_events
from fdaudit.planning.simulated import references_of
from fdaudit.progress import Tick
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import RecordRounds
from fdaudit.storage.tables import csv_text
from fdaudit.storage.tree import open_appending
from fdaudit.storage.writer import BackgroundWriter
from fdaudit.tasks import Task
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.transcript import Position, Transcript, read_messages
from fdaudit.transcript.wire import Wire

__all__ = ["UtilityWriter", "federate"]

_TESTED = 4_000_000_000
"""Floating-point operations on test records for each second of a budget: about a tenth of what two cores do."""
_LEAST_TESTED = 200
"""Test records that are measured on, at the least."""
_WHO = ("line", "round", "party")
"""The columns that say which model a row is about."""


class UtilityWriter:
    """Writer of `utility.csv`: one row for each model evaluated on the test records.

    The columns after `line`, `round` and `party` are those of the task's measurement (`fdaudit.audit.utility`). If it
    measures by site, there are further rows after the last round: one for the test records of each site.

    Args:
        path: the file.
        offset: length at which to continue; all rows after it are removed first.
        task: the learning task.
    """

    def __init__(self, path: Path, offset: int, task: Task) -> None:
        self._path, self._measurement = path, measurement_of(task)
        open_appending(path, offset).close()
        self.offset = offset
        if offset == 0:
            self._write([(*_WHO, *self._measurement.columns)])

    def add(
        self,
        line: str,
        round: int,
        models: Mapping[str, Parameters],
        trainers: Trainers,
        case: Case,
        *,
        last: bool = False,
    ) -> None:
        """Evaluate models on the test records and append their rows; after the `last` round also those by site."""
        if not models:
            return
        x, y = case.test
        rows: list[tuple[Any, ...]] = []
        for party, parameters in models.items():
            logits = trainers[party].predict(parameters, x)
            figures = [self._measurement.measured(logits, y, case)]
            if last:
                figures += self._measurement.measured_by_site(logits, y, case)
            rows += [(line, round, party, *row) for row in figures]
        self._write(rows)

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        with open_appending(self._path) as file:
            file.write(csv_text(rows).encode("utf-8"))
            os.fsync(file.fileno())
        self.offset = self._path.stat().st_size


@dataclass(frozen=True, eq=False)
class _RunningProtocol:
    """A protocol set up on a case: the run's own, or a reference line."""

    case: Case
    protocol: FederatedProtocol
    evaluators: Trainers

    @classmethod
    def set_up(
        cls, case: Case, protocol: type[FederatedProtocol], config: ProtocolConfig, wire: Wire
    ) -> _RunningProtocol:
        clients = {}
        for client in case.clients:
            x, y = case.records(client)
            if protocol is case.protocol and client in case.deviants:  # reference lines are honest
                x, y = case.deviants[client].trains_on(x, y)
            clients[client] = PartyData(x, y)
        setting = setting_of(protocol, case.common, clients, wire, case.seed)
        # The auditor measures with its own training cores: a protocol's cores hold its parties' weights.
        networks = networks_of(protocol, case.common.networks)
        evaluators = Trainers(networks, case.execution, tuple(setting.trainers))
        return cls(case, protocol(config, setting), evaluators)

    def worth_a_row(self, round: Round, last: bool) -> Mapping[str, Parameters]:
        """Return the models to evaluate: non-client models during the run, all models at the end."""
        if last:
            return round.models
        if round.index % self.case.spec.evaluate_every:
            return {}
        shared = dict(round.models)
        for party in round.models:
            if party.startswith("client/"):
                del shared[party]
        return shared or round.models


def federate(run: RunDirectory, tick: Tick, budget: float | None = None) -> Position:
    """Run the protocol from the last checkpoint to its end, then the reference lines.

    A thread makes rounds durable while the next ones compute. A run killed at any instant resumes from the last
    `round.json`. Its result is bit for bit that of an uninterrupted run.

    Args:
        run: the run.
        tick: progress; called when a round is durable, by the thread that made it so.
        budget: seconds for the whole audit, which limit the test records that utility is measured on.

    Returns:
        The transcript's final position.
    """
    case, vault = _tested(run.case, budget), run.vault
    key = vault.secrets.for_run(case.identity)
    checkpoint: Mapping[str, Any] = vault.load_round() or {}
    start = Position(**checkpoint.get("transcript", {}))
    utility = UtilityWriter(run.path / "utility.csv", checkpoint.get("utility", 0), case.dataset.task)
    with Transcript(
        run.path / "transcript",
        secret=key,
        start=start,
        keep=_keep(case),
        writer=BackgroundWriter(),
    ) as transcript:
        checkpoints = Checkpoints(vault, transcript, checkpoint.get("state"))
        meter = _meter(run, start)
        wire = _wire(case, transcript, key, meter)
        stage = _RunningProtocol.set_up(case, case.protocol, case.protocol_config, wire)
        if checkpoint:
            stage.protocol.state = vault.load(checkpoint["state"], checkpoint["state_sha256"])
        name, rounds = case.protocol.card.name, case.protocol_config.rounds
        first = checkpoint.get("round", -1) + 1
        for round in stage.protocol.rounds(first) if _goes_on(meter) else ():
            last = not _goes_on(meter) or round.index == rounds - 1
            models = stage.worth_a_row(round, last)
            utility.add(name, round.index, models, stage.evaluators, case, last=last)
            if last:
                for party, parameters in round.models.items():
                    vault.save(f"models/{party.replace('/', '-')}", parameters)
            # Reported once it is durable: a copy of the directory made then is complete.
            report = partial(tick, name, round.index + 1, rounds)
            checkpoints.save(round, stage.protocol.state, utility.offset, report)
            if last:
                break
        end = transcript.position
    for protocol, config in references_of(
        case.spec.references, case.spec.clients, case.protocol, case.protocol_config, case.spec.preset
    ):
        _reference_line(case, protocol, config, utility, tick)
    return end


def _tested(case: Case, budget: float | None) -> Case:
    """Return the case with as many of its test records as a budget has time for, spread evenly over all."""
    if budget is None:
        return case
    spec = case.spec
    models = case.protocol_config.rounds // spec.evaluate_every + spec.clients + 1
    models *= 1 + len(spec.references)
    work = max(network.work for network in case.common.networks.distinct)
    test = case.splits.test
    most = max(_LEAST_TESTED, int(_TESTED * budget / (models * max(work, 1))))
    if most >= len(test):
        return case
    rows = torch.linspace(0, len(test) - 1, most).long()
    return replace(case, splits=replace(case.splits, test=test[rows]))


def _wire(case: Case, transcript: Transcript, secret: bytes, meter: BudgetMeters | None) -> Wire:
    """Return the wire of the case's protocol, with the case's defences."""
    return Wire(
        transcript,
        parties=case.parties,
        kinds=kinds_of(case.protocol),
        device=torch.device(case.execution.device),
        secret=secret,
        defenses=case.defenses,
        training=case.training,
        withheld=case.spec.withhold,
        withholdable=case.protocol.card.withholdable,
        outages=case.outages,
        meter=meter,
        deviants=case.deviants,
        checks=case.checks,
    )


def _meter(run: RunDirectory, start: Position) -> BudgetMeters | None:
    """Return the meter of the budget, with all recorded messages counted; None if the spec sets no budget."""
    case, privacy = run.case, run.case.spec.privacy
    limit, relation = privacy.budget, privacy.relation
    if limit is None:
        return None
    if relation is None:
        # Of DP-SGD, added or removed records cost less than replaced ones.
        relation = "add-or-remove" if set(case.training) - {"updates"} else "replace-one"
    groups = departing_groups(limit.against, limit.adversary, case.parties)
    meters = []
    for group in ((), *groups):
        departing = tuple(dict.fromkeys((*case.deviants, *group)))
        meter = BudgetMeter(
            limit.adversary,
            limit.epsilon,
            privacy.delta,
            "client" if privacy.unit == "client" else "record",  # a spec has no budget for groups
            relation,
            case.parties,
            fixed=fixed_events(case),
            departing=departing,
        )
        models = exposed(case, limit.adversary.split("+")) | exposed(case, departing)
        meter.expose(models, "model" in case.training)
        meters.append(meter)
    budget = BudgetMeters(meters)
    if start.seq:
        for message in read_messages(run.path / "transcript"):
            if message.seq < start.seq:
                budget.read(message)
    return budget


def _goes_on(meter: BudgetMeters | None) -> bool:
    return meter is None or meter.allows_another()


def _reference_line(
    case: Case, protocol: type[FederatedProtocol], config: ProtocolConfig, utility: UtilityWriter, tick: Tick
) -> None:
    stage = _RunningProtocol.set_up(case, protocol, config, NoWire())
    name = protocol.card.name
    for round in stage.protocol.rounds(0):
        last = round.index == config.rounds - 1
        models = stage.worth_a_row(round, last)
        utility.add(name, round.index, models, stage.evaluators, case, last=last)
        tick(name, round.index + 1, config.rounds)


def _keep(case: Case) -> Callable[[int], bool]:
    record = case.spec.record
    if isinstance(record, RecordRounds):
        return frozenset(record.rounds).__contains__
    return lambda round: record == "full"
