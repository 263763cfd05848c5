"""The simulation: runs a protocol over the wire round by round; it can resume after any round."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fdaudit.accounting.budget import Meter
from fdaudit.federation.checkpoints import Checkpoints
from fdaudit.federation.networks import Trainers
from fdaudit.federation.protocol import FederatedProtocol, PartyData, ProtocolConfig, Round
from fdaudit.federation.rehearsal import NoWire, kinds_of, networks_of, setting_of
from fdaudit.handout.oracle_access import exposed
from fdaudit.metrics import accuracy, macro_f1, mean_auc, mean_auc_figure, multilabel_macro_f1
from fdaudit.metrics.segmentation.figures import score_masks
from fdaudit.planning.message_sizes import fixed_events
from fdaudit.planning.plan import Plan
from fdaudit.planning.run_directory import RunDirectory
from fdaudit.spec.schema import RecordRounds
from fdaudit.storage.tables import csv_text
from fdaudit.storage.tree import open_appending
from fdaudit.storage.writer import BackgroundWriter
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.transcript import Position, Transcript, read_messages
from fdaudit.transcript.wire import Wire
from fdaudit.types import Task, task_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Utility", "federate"]

Tick = Callable[[str, int, int], None]
"""Progress: activity, steps done, total."""

_WHO = ("line", "round", "party")
_COLUMNS: Mapping[Task, tuple[str, ...]] = {
    "single-label": (*_WHO, "accuracy", "macro_f1", "n"),
    "multi-label": (*_WHO, "mean_auc", "low", "high", "macro_f1", "left_out", "n"),
    "text": (*_WHO, "accuracy", "macro_f1", "n"),
    "segmentation": (*_WHO, "dice", "low", "high", "mean_iou", "object_dice", "aji", "hd95", "n", "site"),
}


class Utility:
    """Writer of `utility.csv`: one row for each model evaluated on the test records.

    For the multi-label task a row has mAUC with its interval (empty if there is none), and the number of classes that
    it leaves out. For segmentation it has the mean Dice coefficient with its interval, mIoU, object-level Dice, AJI and
    HD95 (empty if no image has one). Masks of several sites have further rows after the last round: one for the test
    images of each site, whose number is in the column `site`.

    Args:
        path: the file.
        offset: length at which to continue; all rows after it are removed first.
        task: the models' task.
    """

    def __init__(self, path: Path, offset: int, task: Task = "single-label") -> None:
        self._path = path
        open_appending(path, offset).close()
        self.offset = offset
        if offset == 0:
            self._write([_COLUMNS[task]])

    def add(
        self,
        line: str,
        round: int,
        models: Mapping[str, Parameters],
        trainers: Trainers,
        plan: Plan,
        *,
        last: bool = False,
    ) -> None:
        """Evaluate models on the test records and append their rows; after the `last` round also those by site."""
        if not models:
            return
        x, y = plan.test
        rows: list[tuple[Any, ...]] = []
        for party, parameters in models.items():
            logits = trainers[party].predict(parameters, x)
            measured = [_measured(logits, y, plan)]
            if last and plan.dataset.task == "segmentation":
                measured += _measured_by_site(logits.argmax(1), y, plan)
            rows += [(line, round, party, *figures) for figures in measured]
        self._write(rows)

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        with open_appending(self._path) as file:
            file.write(csv_text(rows).encode("utf-8"))
            os.fsync(file.fileno())
        self.offset = self._path.stat().st_size


def _measured(logits: Tensor, y: Tensor, plan: Plan) -> tuple[Any, ...]:
    """Return the figures of one row, in the order of `_COLUMNS`."""
    if task_of(y) == "segmentation":
        return (*_measured_masks(logits.argmax(1), y, plan, torch.arange(len(y))), None)
    if task_of(y) == "single-label":
        guess = logits.argmax(1)
        return accuracy(guess, y), macro_f1(guess, y), len(y)
    figure = mean_auc_figure(logits, y)
    left_out = len(mean_auc(logits, y).left_out)
    return figure.value, figure.low, figure.high, multilabel_macro_f1(logits > 0, y), left_out, len(y)


def _measured_masks(predicted: Tensor, y: Tensor, plan: Plan, images: Tensor) -> tuple[Any, ...]:
    """Return the figures of predicted masks (n, h, w) on some test images."""
    objects, pictures = (
        None if held is None else held[plan.splits.test[images]].numpy()
        for held in (plan.dataset.objects, plan.dataset.pictures)
    )
    found = score_masks(predicted[images].numpy(), y[images].numpy(), objects=objects, pictures=pictures)
    dice = found.dice
    others = (found.mean_iou, found.object_dice, found.aji, found.hd95)
    return dice.value, dice.low, dice.high, *others, len(images)


def _measured_by_site(predicted: Tensor, y: Tensor, plan: Plan) -> list[tuple[Any, ...]]:
    """Return the figures on each site's test images, with the site's number; nothing if there is one site."""
    if plan.dataset.sites is None:
        return []
    of = plan.dataset.sites[plan.splits.test]
    sites = of.unique().tolist()
    if len(sites) < 2:
        return []
    return [(*_measured_masks(predicted, y, plan, (of == k).nonzero().squeeze(1)), k) for k in sites]


@dataclass(frozen=True, eq=False)
class _Stage:
    """A protocol set up on a plan: the run's own, or a reference line."""

    plan: Plan
    protocol: FederatedProtocol
    evaluators: Trainers

    @classmethod
    def set_up(
        cls, plan: Plan, protocol: type[FederatedProtocol], config: ProtocolConfig, wire: Wire
    ) -> _Stage:
        clients = {k: PartyData(*plan.records(k)) for k in plan.clients}
        setting = setting_of(protocol, plan.common, clients, wire, plan.seed)
        # The auditor measures with its own training cores: a protocol's cores hold its parties' weights.
        networks = networks_of(protocol, plan.common.networks)
        evaluators = Trainers(networks, plan.execution, tuple(setting.trainers))
        return cls(plan, protocol(config, setting), evaluators)

    def worth_a_row(self, done: Round, last: bool) -> Mapping[str, Parameters]:
        """Return the models to evaluate: non-client models during the run, all models at the end."""
        if not last and done.index % self.plan.spec.evaluate_every:
            return {}
        shared = {p: m for p, m in done.models.items() if not p.startswith("client/")}
        return done.models if last or not shared else shared


def federate(run: RunDirectory, tick: Tick) -> Position:
    """Run the protocol from the last checkpoint to its end, then the reference lines.

    A thread makes rounds durable while the next ones compute. A run killed at any instant resumes from the last
    `round.json`. Its result is bit for bit that of an uninterrupted run.

    Args:
        run: the run.
        tick: progress; called when a round is durable, by the thread that made it so.

    Returns:
        The transcript's final position.
    """
    plan, vault = run.plan, run.vault
    key, checkpoint = vault.secrets.for_run(plan.identity), vault.load_round()
    start = Position(**checkpoint["transcript"]) if checkpoint else Position()
    utility = Utility(run.path / "utility.csv", checkpoint["utility"] if checkpoint else 0, plan.dataset.task)
    with Transcript(
        run.path / "transcript",
        secret=key,
        start=start,
        keep=_keep(plan),
        writer=BackgroundWriter(),
    ) as transcript:
        checkpoints = Checkpoints(vault, transcript, checkpoint["state"] if checkpoint else None)
        meter = _meter(run, start)
        wire = _wire(plan, transcript, key, meter)
        stage = _Stage.set_up(plan, plan.protocol, plan.protocol_config, wire)
        if checkpoint:
            stage.protocol.state = vault.load(checkpoint["state"], checkpoint["state_sha256"])
        rounds = plan.protocol_config.rounds
        done: Round | None = None
        first = checkpoint["round"] + 1 if checkpoint else 0
        for done in stage.protocol.rounds(first) if _goes_on(meter) else ():
            last = done.index == rounds - 1 or not _goes_on(meter)
            worth = stage.worth_a_row(done, last)
            utility.add(plan.protocol.name, done.index, worth, stage.evaluators, plan, last=last)
            if last:
                for party, parameters in done.models.items():
                    vault.save(f"models/{party.replace('/', '-')}", parameters)
            # Reported once it is durable: a copy of the directory made then is complete.
            told = partial(tick, plan.protocol.name, done.index + 1, rounds)
            checkpoints.save(done, stage.protocol.state, utility.offset, told)
            if last:
                break
        end = transcript.position
    for protocol, config in plan.references:
        _reference_line(plan, protocol, config, utility, tick)
    return end


def _wire(plan: Plan, transcript: Transcript, secret: bytes, meter: Meter | None) -> Wire:
    """Return the wire of the plan's protocol, with the plan's defences."""
    return Wire(
        transcript,
        parties=plan.parties,
        kinds=kinds_of(plan.protocol),
        device=torch.device(plan.execution.device),
        secret=secret,
        defenses=plan.defenses,
        training=plan.training,
        withheld=plan.spec.withhold,
        withholdable=plan.protocol.withholdable,
        outages=plan.outages,
        meter=meter,
    )


def _meter(run: RunDirectory, start: Position) -> Meter | None:
    """Return the meter of the budget, with all recorded messages counted; None if the spec sets no budget."""
    plan, asked = run.plan, run.plan.spec.privacy
    if asked.budget is None:
        return None
    meter = Meter(
        asked.budget.adversary,
        asked.budget.epsilon,
        asked.delta,
        "client" if asked.unit == "client" else "record",  # a spec has no budget for groups
        # Of DP-SGD, added or removed records cost less than replaced ones.
        asked.relation or ("add-or-remove" if set(plan.training) - {"updates"} else "replace-one"),
        plan.parties,
        fixed=fixed_events(plan),
    )
    meter.expose(exposed(plan, asked.budget.adversary.split("+")), "model" in plan.training)
    for message in read_messages(run.path / "transcript") if start.seq else ():
        if message.seq < start.seq:
            meter.read(message)
    return meter


def _goes_on(meter: Meter | None) -> bool:
    return meter is None or meter.allows_another()


def _reference_line(
    plan: Plan, protocol: type[FederatedProtocol], config: ProtocolConfig, utility: Utility, tick: Tick
) -> None:
    stage = _Stage.set_up(plan, protocol, config, NoWire())
    for done in stage.protocol.rounds(0):
        last = done.index == config.rounds - 1
        worth = stage.worth_a_row(done, last)
        utility.add(protocol.name, done.index, worth, stage.evaluators, plan, last=last)
        tick(protocol.name, done.index + 1, config.rounds)


def _keep(plan: Plan) -> Callable[[int], bool]:
    record = plan.spec.record
    if isinstance(record, RecordRounds):
        return frozenset(record.rounds).__contains__
    return lambda round: record == "full"
