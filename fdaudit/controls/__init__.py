"""Controls: every attack is tried where it must work and where it must fail, through the code it always runs.

An attack that finds nothing has shown nothing until its positive control has succeeded; one that also finds
something in noise, or in a model that was never trained, has shown nothing either. The victims of controls are
auxiliary records: no private record takes part.

An attack's card says in `control` what it is tried on (`on`, a name of `CONTROLS`; left out: `model`), with what
that needs besides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING

from fdaudit.controls.classes import withheld_classes
from fdaudit.controls.federation import recorded_answers
from fdaudit.controls.generated import generated_samples, overfit_discriminator
from fdaudit.controls.gradients import bare_gradients
from fdaudit.controls.labels import skewed_clients
from fdaudit.controls.models import overfit_model
from fdaudit.controls.uploads import recorded_uploads
from fdaudit.messages import canonical
from fdaudit.result import Control

if TYPE_CHECKING:
    from fdaudit.plan import AttackPlan, Plan

__all__ = ["CONTROLS", "controls", "depends_on"]

CONTROLS: Mapping[str, Callable[[AttackPlan, Plan], dict[str, Control]]] = MappingProxyType(
    {
        "classes": withheld_classes,
        "discriminator": overfit_discriminator,
        "federation": recorded_answers,
        "generated": generated_samples,
        "gradients": bare_gradients,
        "labels": skewed_clients,
        "model": overfit_model,
        "uploads": recorded_uploads,
    }
)
"""What an attack can be tried on."""


def depends_on(attack: AttackPlan, plan: Plan) -> bytes:
    """Everything that the outcome of an attack's controls depends on, as bytes; no private record.

    The protocol, who takes part and their networks are among it for those controls only that run the protocol.
    """
    network = plan.architecture
    stated = {
        "attack": attack.name,
        "params": dict(attack.params or {}),
        "network": [network.name, dict(network.params), list(network.input_shape), network.classes],
        "execution": plan.execution.described,
        "queries": plan.spec.query_budget,
        "task": plan.dataset.task,
        "seed": plan.seed,
        "version": version("fdaudit"),
    }
    if attack.card.get("control", {}).get("on") in ("gradients", "labels"):
        stated["protocol"] = [plan.protocol.name, plan.protocol_config.model_dump(mode="json")]
        stated["clients"] = [plan.spec.clients, [m.model_dump(mode="json") for m in plan.spec.client_models]]
        stated["records"] = [len(plan.records(k)[1]) for k in plan.clients]
    digest = hashlib.sha256(canonical(stated))
    for tensor in (*plan.auxiliary, plan.public):
        digest.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return digest.digest()


def controls(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    """The positive and the negative control of an attack on the run's kind of images."""
    return CONTROLS[attack.card.get("control", {"on": "model"})["on"]](attack, plan)
