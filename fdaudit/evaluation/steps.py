"""The unit of an attack's work: a training step of the run's network on 8 images, and what it costs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.planning.case import Case
from fdaudit.registry import AttackCard

__all__ = ["BATCH", "Unit", "Work", "round_of"]

BATCH = 8
"""Images of a step."""
_MOST_BATCH, _MOST_STEPS = 64, 2000
"""Most images of a step of training, and most steps of a shadow model of one victim."""
_MEASURING, _FEWEST = 0.05, 3
"""Seconds for the measurement of a step, and how often it is measured at the least."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an attack states of its work under its profile `quick`.

    Attributes:
        once: steps for the attack's controls, and for all that its cells share.
        each: steps for a cell.
        rehearsals: federations of the run's length that its cells share.
        grows: settings that the work is proportional to.
        victims: the setting that counts shadow models of each victim, which attacks with as many share.
        shadows: the settings that count shadow models of the run and their steps, which attacks with as many share.
    """

    once: float = 0.0
    each: float = 0.0
    rehearsals: float = 0.0
    grows: tuple[str, ...] = ()
    victims: str = ""
    shadows: tuple[str, ...] = ()

    @classmethod
    def of(cls, card: AttackCard) -> Work | None:
        """Return the work that an attack's card states; None if it states none, or something else."""
        stated = card.work
        if not isinstance(stated, Mapping) or not stated.keys() <= cls.__dataclass_fields__.keys():
            return None
        work = dict[str, Any]()
        for name, value in stated.items():
            if name in ("grows", "shadows"):
                valid = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
            elif name == "victims":
                valid = isinstance(value, str)
            else:
                valid = _amount(value)
            if not valid:
                return None
            work[name] = float(value) if isinstance(value, int) else value
        return cls(**work)

    def growth(self, attack: AttackPlan) -> float:
        """Return how many times the work of the profile `quick` an attack's settings ask for."""
        quick, params, growth = attack.card.profiles["quick"], attack.params or {}, 1.0
        for name in self.grows:
            if _amount(quick.get(name)) and quick[name] and _amount(params.get(name)):
                growth *= params[name] / quick[name]
        return growth


def _amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The cost of one step of a network, and its size.

    Attributes:
        seconds: time of a step on one thread.
        parameters: number of the network's parameters.
        kept: values that the network keeps of one image until the gradient is computed.
        training: time of a step with as many images as clients train on at a time; 0 if it was not measured.
    """

    seconds: float
    parameters: int
    kept: int
    training: float = 0.0

    @property
    def trained(self) -> float:
        """Return the seconds of a step of training."""
        return self.training or self.seconds

    @classmethod
    def measured(cls, case: Case) -> Unit:
        """Measure a step of a case's network, in the caller's number of threads."""
        network = case.trainer().network(case.initial()).eval()
        weights = [p for p in network.parameters() if p.requires_grad]
        device = weights[0].device
        images = case.architecture.blank_inputs(BATCH, device)
        own, saved = {p.data_ptr() for p in network.parameters()}, dict[int, int]()

        def count(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                saved[tensor.data_ptr()] = tensor.numel()
            return tensor

        def step(images: Tensor) -> None:
            loss = network(images).square().mean()
            for gradient in torch.autograd.grad(loss, weights):
                float(gradient.flatten()[0])  # waits for the device

        # The processor's time: another busy process makes no difference. An accelerator's time is none of it.
        clock = time.thread_time if device.type == "cpu" else time.perf_counter

        def fastest(images: Tensor) -> float:
            """Return the least time of a step: others that share a core or its cache only add to it."""
            deadline, times = time.perf_counter() + _MEASURING, list[float]()
            while len(times) < _FEWEST or time.perf_counter() < deadline:
                start = clock()
                step(images)
                times.append(clock() - start)
            return min(times)

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            step(images)
        return cls(
            seconds=fastest(images),
            parameters=sum(p.numel() for p in network.parameters()),
            kept=sum(saved.values()) // BATCH,
            training=fastest(case.architecture.blank_inputs(_batch_of(case), device)),
        )


def _batch_of(case: Case) -> int:
    """Return the number of images of a client's training step; as shadow models have it where it is not stated."""
    batch = case.settings.get("batch_size")
    return min(batch, _MOST_BATCH) if type(batch) is int and batch > 0 else _MOST_BATCH


def round_of(case: Case) -> float:
    """Return the steps of a client's training in one round, or before its first answers."""
    settings = case.settings
    warm_up, steps = settings.get("warm_up_steps") or 0, settings.get("local_steps")
    if steps is None:
        records = sorted(len(client.train) for client in case.splits.clients)
        each = math.ceil(records[len(records) // 2] / _batch_of(case)) if records else 1
        steps = each * (settings.get("local_epochs") or 1)
    return float(min(_MOST_STEPS, warm_up + steps))
