"""Presets: expand a protocol as published, or with defences that give the server's view a finite ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fdaudit import defenses
from fdaudit.accounting.calibration import least_noise
from fdaudit.accounting.charges import Charge
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.events import Gaussian, SampledGaussian
from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig
from fdaudit.spec.privacy import PresetSpec
from fdaudit.spec.schema import DefenseEntry, Spec
from fdaudit.transcript.wire import acts_in_training

__all__ = ["written_out"]


_LENGTHS = frozenset({"local_steps", "local_epochs"})


def written_out(spec: Spec, protocol: type[FederatedProtocol], records: int) -> Spec:
    """Return the spec with its preset expanded into the fields that it stands for.

    One noise multiplier is found for all noise of the private combination. With it the server's view costs at most the
    preset's ε when one record is added or removed. The accountants are the ledger's own.

    Args:
        spec: what the user wrote.
        protocol: the protocol's class.
        records: number of records of all clients; a public constant here.

    Raises:
        SpecError: the preset conflicts with other fields, or ε cannot be met.
    """
    preset = spec.preset
    if preset is None or preset.written_out:
        return spec
    if preset.name in ("paper", "authors-code"):
        return _as_stated(spec, protocol, preset)
    for field, entries in (("defenses", spec.defenses), ("withhold", spec.withhold)):
        if entries:
            problem = f"is given beside preset {preset.name!r}, which says what is defended"
            raise SpecError(field, len(entries), problem, "Give one of them.")
    if preset.name == "as-published":
        return spec.model_copy(update={"preset": preset.model_copy(update={"written_out": True})})
    combination = protocol.card.privacy.get("private")
    if combination is None:
        problem = f"is not declared by {protocol.card.name}"
        raise SpecError("preset.name", preset.name, problem, "Write its defences out in the spec.")
    mean_records = records if protocol.card.pools_data else records / spec.clients
    tuned = _tuned(combination, preset, protocol, spec.protocol.params, mean_records)
    params = {**tuned, **spec.protocol.params, **combination["params"]}
    config: ProtocolConfig = validate(protocol.Config, params, "protocol.params")
    defended = _entries(combination, preset, protocol, config, mean_records)
    noise = 1.0
    if defended:
        noise = _noise(defended, config, preset, spec.privacy.delta)
    return spec.model_copy(
        update={
            "preset": preset.model_copy(update={"written_out": True, "tuned": tuple(tuned)}),
            "protocol": spec.protocol.model_copy(update={"params": params}),
            "withhold": tuple(combination["withhold"]),
            "defenses": tuple(_with_noise(entry, noise) for entry in defended),
        }
    )


def _as_stated(spec: Spec, protocol: type[FederatedProtocol], preset: PresetSpec) -> Spec:
    """Return the spec with the settings that the protocol's paper or its authors' code has, below its own."""
    stated = protocol.card.settings.get(preset.name)
    if stated is None:
        problem = f"is not declared by {protocol.card.name}"
        raise SpecError("preset.name", preset.name, problem, "Write the settings into the spec.")
    own, params = spec.protocol.params, dict(stated)
    if _LENGTHS & own.keys():  # a length in steps replaces one in epochs
        for name in _LENGTHS:
            params.pop(name, None)
    return spec.model_copy(
        update={
            "preset": preset.model_copy(update={"written_out": True}),
            "protocol": spec.protocol.model_copy(update={"params": {**params, **own}}),
        }
    )


def _tuned(
    combination: Mapping[str, Any],
    preset: PresetSpec,
    protocol: type[FederatedProtocol],
    own: Mapping[str, Any],
    records: float,
) -> dict[str, Any]:
    """Return the combination's tuned settings where the spec leaves them open, and batches of all records.

    Few noisy steps on many records cost less accuracy than many on few (De et al. 2022, §3).
    """
    # A setting that another one implies is not open: gradients are sent after one step.
    fixed = set(validate(protocol.Config, own, "protocol.params").model_fields_set)
    batch = protocol.card.trains.get("model")
    is_open = batch not in fixed and preset.sample_rate is None
    if _LENGTHS & fixed:
        fixed |= _LENGTHS
    if "lr" in fixed:
        fixed.add("distill_lr")  # whose default is `lr`
    tuned: dict[str, Any] = {}
    for name, value in combination.get("tuned", {}).items():
        if name not in fixed:
            tuned[name] = value
    if tuned and batch is not None and is_open:
        # Rounded up to two digits: what is written down is a constant, not a count.
        unit: int = 10 ** max(math.floor(math.log10(max(records, 1.0))) - 1, 0)
        tuned[batch] = math.ceil(records / unit) * unit
    return tuned


def _entries(
    combination: Mapping[str, Any],
    preset: PresetSpec,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    records: float,
) -> list[DefenseEntry]:
    """Return the defences of a combination, with a noise multiplier of 1."""
    entries = []
    for of in combination["training"]:
        batch = getattr(config, protocol.card.trains[of])
        # Two digits, rounded up: what is written down is a constant, not a count.
        rate = preset.sample_rate or min(math.ceil(100 * batch / records) / 100, 1.0)
        params = {"clip": preset.clip, "noise_multiplier": 1.0, "sample_rate": rate}
        entries.append(DefenseEntry(at="training", of=of, name="dp-sgd", params=params))
    message = combination.get("noise")
    if message:
        params = {"clip": message["clip"], "sigma": 2 * message["clip"]}
        kind, sender, name = message["kind"], message["sender"], message["name"]
        entries.append(DefenseEntry(kind=kind, sender=sender, name=name, params=params))
    return entries


def _with_noise(entry: DefenseEntry, noise: float) -> DefenseEntry:
    setting = "noise_multiplier" if entry.at == "training" else "sigma"
    return entry.model_copy(update={"params": {**entry.params, setting: entry.params[setting] * noise}})


def _noise(entries: list[DefenseEntry], config: ProtocolConfig, preset: PresetSpec, delta: float) -> float:
    """Return the smallest multiplier that keeps to the preset's ε, rounded up to five digits."""

    def charges(noise: float) -> dict[Charge, int]:
        # The most that one client is charged in a whole run.
        charged = dict[Charge, int]()
        for entry in [_with_noise(e, noise) for e in entries]:
            cls = defenses.REGISTRY.load(entry.name)
            if acts_in_training(cls):
                rule = cls(validate(cls.Config, entry.params), 1)
                steps = 0
                for length in config.trainings(entry.of or "model"):
                    steps += rule.steps(length)
                event = rule.event(max(steps, 1))
                if not isinstance(event, SampledGaussian | Gaussian):
                    raise TypeError(f"{entry.name} gives no event that a preset can charge")
            else:
                event = Gaussian(
                    sensitivity=2 * entry.params["clip"],
                    scale=entry.params["sigma"],
                    count=config.rounds,
                    unit="record",
                    relation="add-or-remove",
                    covers=("data", "messages"),
                )
            charged[event] = charged.get(event, 0) + 1
        return charged

    target = preset.epsilon or 0.0
    try:
        return least_noise(charges, target, delta)
    except SpecError as error:
        raise SpecError("preset.epsilon", target, error.problem, error.remedy) from None
