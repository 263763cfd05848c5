"""Controls: every attack is tried on a case where it must work and on one where it must fail, through its usual code.

An attack that finds nothing proves something only if its positive control succeeds. An attack that finds something in
noise or in an untrained model proves nothing. The victims of controls are auxiliary records, never private ones.

An attack's card says in `control` on what it is tried (`on`, a name of `CONTROLS`; default: `model`), with the other
inputs of that control.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING

from fdaudit.evaluation.controls._case import SmallCase, tried
from fdaudit.evaluation.controls.answers import (
    answers_about_candidates,
    averaged_answers,
    model_that_answers,
    recorded_answers,
)
from fdaudit.evaluation.controls.classes import unseen_classes
from fdaudit.evaluation.controls.generated import compared_records, generated_samples, scored_samples
from fdaudit.evaluation.controls.gradients import bare_gradients
from fdaudit.evaluation.controls.models import overfit_discriminator, overfit_model
from fdaudit.evaluation.controls.rehearsals import rehearsed_selector, skewed_clients
from fdaudit.evaluation.controls.uploads import crafted_neurons, recorded_tables, recorded_uploads
from fdaudit.handout.auxiliary import by_classes
from fdaudit.handout.oracle_access import accesses
from fdaudit.result import Control
from fdaudit.storage.digests import canonical

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["CONTROLS", "controls", "depends_on", "setting_of"]


def _without_control(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return no case: for an attack on a goal that no control fits. Such an attack cannot clear anyone."""
    return {}


CONTROLS: Mapping[str, Callable[[AttackPlan, Case], Mapping[str, SmallCase | Control]]] = MappingProxyType(
    {
        "answers": model_that_answers,
        "candidates": answers_about_candidates,
        "classes": unseen_classes,
        "comparisons": compared_records,
        "discriminator": overfit_discriminator,
        "average": averaged_answers,
        "federation": recorded_answers,
        "generated": generated_samples,
        "gradients": bare_gradients,
        "labels": skewed_clients,
        "model": overfit_model,
        "neurons": crafted_neurons,
        "nothing": _without_control,
        "scores": scored_samples,
        "selector": rehearsed_selector,
        "tables": recorded_tables,
        "uploads": recorded_uploads,
    }
)
"""The small cases on which an attack can be tried: what is recorded, what the truth is, and in which words."""
_REHEARSED = ("labels", "selector")
"""Those that run the protocol."""


def setting_of(attack: AttackPlan, case: Case, adversary: str) -> str:
    """Return the setting of an attack's controls that matches an adversary, as part of a file's name.

    Attacks that show classes are tried in the way the adversary gets its answers: `answers` if clients give them in
    their messages. For all other attacks, and if a released or visible model answers, the setting is empty.
    """
    card, members = attack.card, adversary.split("+")
    if not by_classes(card) or card.control["through"] != "oracle":
        return ""
    for access in accesses(case):
        if access.open_to(members, case.spec.transport):
            if access.kind is None:
                return ""
            if card.oracle == "hard" or access.kind != "hard_labels":
                return "answers"
    return ""


def depends_on(attack: AttackPlan, case: Case, setting: str = "") -> bytes:
    """Return everything that the outcome of an attack's controls depends on, as bytes; no private record is included.

    The protocol, its parties and their networks are included only for controls that run the protocol. Controls of
    attacks that show classes depend on the evaluator's test records and on the clients' numbers of records. If clients
    answer, they also depend on the protocol and the defences.
    """
    network = list[object]()
    if case.networks is not None:
        shared = case.networks.shared
        network = [shared.name, dict(shared.params), list(shared.input_shape), shared.classes]
    stated = {
        "attack": attack.name,
        "params": dict(attack.params or {}),
        "network": network,
        "execution": case.execution.described,
        "queries": case.spec.query_budget,
        "task": case.dataset.task.name,
        "auxiliary": case.spec.auxiliary.model_dump(mode="json"),
        "seed": case.seed,
        "version": version("fdaudit"),
    }
    if attack.card.control["on"] in ("gradients", "labels", "selector"):
        stated["protocol"] = [case.protocol.card.name, case.settings]
        stated["clients"] = [case.spec.clients, [m.model_dump(mode="json") for m in case.spec.client_models]]
        stated["records"] = [len(case.records(k)[1]) for k in case.clients]
    records = [*case.auxiliary, case.public]
    if by_classes(attack.card):
        stated["setting"] = [setting, case.spec.victims, sorted(len(c.train) for c in case.splits.clients)]
        if setting or attack.card.control["through"] == "messages":
            stated["defenses"] = [d.model_dump(mode="json") for d in case.spec.defenses]
            stated["answers"] = [case.protocol.card.name, case.settings]
        records += case.test
    digest = hashlib.sha256(canonical(stated))
    for tensor in records:
        digest.update(str(tuple(tensor.shape)).encode())
        if not tensor.is_meta:  # images that were not brought
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.digest()


def controls(attack: AttackPlan, case: Case, setting: str = "") -> dict[str, Control]:
    """Return the positive and the negative control of an attack on the run's kind of images, in one setting.

    There are none if what they need was not brought: auxiliary records, a network, or a protocol to rehearse.
    """
    if setting:
        return tried(attack, case, unseen_classes(attack, case, setting))
    on = attack.card.control["on"]
    if case.missing("auxiliary", "architecture") or (on in _REHEARSED and case.missing("stand-in")):
        return {}
    return tried(attack, case, CONTROLS[on](attack, case))
