"""No type that an attack is given leads to one that only the auditor holds."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fdaudit import config
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.adversary.view import View
from fdaudit.audit.run import Run
from fdaudit.data import ClientSplit, Dataset, Splits
from fdaudit.evaluation.stage import Stage
from fdaudit.events import Event
from fdaudit.federation.protocol import PartyData, Setting
from fdaudit.models import Architecture
from fdaudit.models.declared import GeneratorCard
from fdaudit.planning.case import Case
from fdaudit.rng import SecretStream
from fdaudit.scoring.ground_truth import Truth
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.training.trainer import Trainer
from fdaudit.transcript.transcript import Transcript
from fdaudit.transcript.wire import Wire
from fdaudit.types import AttackTask, Challenge, OracleHandle

AUDITOR_ONLY = (
    *(Vault, Secrets, Splits, ClientSplit, Dataset, Case, AttackPlan, Run, Stage, Truth),
    *(Wire, Transcript, PartyData, Setting),
)


def _hints(cls: type) -> dict[str, Any]:
    """Annotations of a class's fields, and of what its properties and methods give."""
    names = {
        "Architecture": Architecture, "Event": Event, "GeneratorCard": GeneratorCard, "nn": torch.nn,
        "SecretStream": SecretStream, "Tensor": Tensor,
        "Trainer": Trainer, "View": View, "settings": config, "torch": torch,
    }  # fmt: skip
    found = dict(typing.get_type_hints(cls, localns=names))
    own = [c for c in cls.__mro__ if c.__module__.startswith("fdaudit")]
    for name, member in ((n, m) for c in own for n, m in vars(c).items()):
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and not name.startswith("__"):
            found |= {f"{name}({k})": v for k, v in typing.get_type_hints(function, localns=names).items()}
    return found


def _types_in(hint: Any) -> set[Any]:
    """Every type inside an annotation such as `Mapping[str, tuple[Tensor, ...]] | None`."""
    inside = set().union(*(_types_in(a) for a in typing.get_args(hint)))
    if isinstance(hint, list):
        inside |= set().union(*(_types_in(a) for a in hint))
    return inside | ({hint} if isinstance(hint, type) else set())


def _reachable(cls: type) -> set[type]:
    seen: set[type] = set()
    agenda = [cls]
    while agenda:
        current = agenda.pop()
        if current not in seen:
            seen.add(current)
            if current.__module__.startswith(("fdaudit", __name__)):
                agenda += [t for hint in _hints(current).values() for t in _types_in(hint)]
    return seen


GIVEN = [View, Knowledge, AttackTask, Challenge, OracleHandle, Oracle]


@pytest.mark.parametrize("cls", GIVEN, ids=lambda c: c.__name__)
def test_no_type_that_an_attack_is_given_leads_to_one_that_only_the_auditor_holds(cls):
    assert not _reachable(cls) & set(AUDITOR_ONLY)


def test_the_search_by_type_goes_through_generics_callables_and_dataclasses():
    assert {View, Trainer, Architecture, Path, Tensor} <= _reachable(Knowledge)
    assert {Challenge, OracleHandle} <= _reachable(AttackTask)

    @dataclasses.dataclass
    class Leaky:
        ask: typing.Callable[[list[Tensor]], dict[str, Vault | None]]

    assert Vault in set().union(*(_types_in(h) for h in typing.get_type_hints(Leaky, localns={}).values()))
