"""Runs on which the refutation suite attacks the ledger: every private preset, every defence with a finite ε.

Settings are chosen so that a wrong ledger would be contradicted. In a *deep* case one client holds many canaries, and
the server's samples include the very images that were mislabelled. In a *wide* case many clients hold next to nothing
but one pair of canaries, so that a coin moves a whole message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdaudit.protocols import REGISTRY as PROTOCOLS

__all__ = ["ADVERSARIES", "CASES", "NEVER_FINITE", "NOT_A_CLAIM", "Case", "case"]

ADVERSARIES = ("server", "aggregator", "world", "client/1", "eavesdropper", "server+client/1")
"""Whose views are attacked, where the run has such a party. An encrypted eavesdropper is attacked beside them."""

NOT_A_CLAIM = {"standalone": "nothing leaves a client: there is no view to attack"}
"""Protocols without a row, and why."""

NEVER_FINITE = dict.fromkeys(
    ("hard-label", "rounding", "temperature", "top-k", "uniform-quantization"),
    "bounds no client's influence and adds no noise: the event says that it gives no guarantee",
)
"""Defences without a row, and why."""

_DELTA = 1e-8
"""δ of every claim. A larger one would drown bounds of the high confidence that so many of them need."""
_COINS, _CLIENTS = 300, 60
"""Canaries of a deep case; clients of a wide case."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run that is attacked from every side.

    Attributes:
        name: of the row in the table.
        spec: what is run.
        protocol: its protocol.
        defences: the names of the defences that its ε rests on.
        finite: adversaries that must have a finite ε; a case whose ε became infinite would test nothing.
    """

    name: str
    spec: Mapping[str, Any]
    protocol: str
    defences: tuple[str, ...]
    finite: tuple[str, ...]


def _spec(protocol: str, params: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "device": "cpu",
        "threads": 1,
        "profile": "quick",
        "model": {"name": "mlp", "params": {"widths": [64]}},
        "protocol": {"name": protocol, "params": dict(params)},
        "references": [],
        "attacks": [],
        "adversaries": ["server", "world"] if protocol != "centralized" else ["world"],
        "victims": 1,
        "evaluate_every": 50,
        "privacy": {"delta": _DELTA},
        **changes,
    }


def _deep(
    protocol: str, params: Mapping[str, Any], kind: str = "noise", count: int = _COINS, **changes: Any
) -> dict[str, Any]:
    """Two clients, of which the first trains on half of its many canaries.

    Canaries of random pixels have the most distinct gradients. Mislabelled ones are public samples, since
    every image of digits is public: what a client says of them needs no detour.
    """
    design = changes.pop("design", "coin-flips")
    shared = {"public_dataset": {"name": "digits"}} if _needs_public(protocol) else {}
    return _spec(
        protocol,
        params,
        clients=2,
        dataset={"name": "digits", **({} if kind == "mislabelled" else {"limit": 200})},
        canaries={"count": count, "kind": kind, "design": design},
        queries=2 * count,
        **{
            "splits": {"test": 0.05, "proxy": 0.0, "auxiliary": 0.05, "candidates": 0},
            **shared,
            **changes,
        },
    )


def _wide(
    protocol: str, params: Mapping[str, Any], clients: int = _CLIENTS, **changes: Any
) -> dict[str, Any]:
    """Many clients of some four records, one of which is either of a pair of canaries."""
    shared = {"public_dataset": {"name": "digits", "limit": 40}} if _needs_public(protocol) else {}
    return _spec(
        protocol,
        params,
        clients=clients,
        dataset={"name": "digits", "limit": 5 * clients},
        splits={"test": 0.2, "proxy": 0.0, "auxiliary": 0.05, "candidates": 0},
        canaries={"count": 1, "clients": list(range(clients)), "kind": "noise", "design": "matched-pairs"},
        queries=2,
        **{**shared, **changes},
    )


def _needs_public(protocol: str) -> bool:
    return bool(PROTOCOLS.load(protocol).card.needs_public)


_LOCAL = {"local_steps": 2, "batch_size": 64, "lr": 5e-4}
"""The learning rate is small: each record then adds nearly its first gradient to a model. Noise shrinks alike."""
_PRESETS: dict[str, dict[str, Any]] = {
    "centralized": {"rounds": 2, **_LOCAL},
    "cronus": {"rounds": 2, "warm_up_steps": 2, "public_batch": 1797, **_LOCAL},
    "dafkd": {"rounds": 2, "distill_steps": 1, "pseudo_samples": 16, "generator_width": 4, **_LOCAL},
    "ds-fl": {"rounds": 2, "warm_up_steps": 2, "distill_steps": 1, "distill_lr": 1e-6, "public_batch": 1797, **_LOCAL},
    "fedavg": {"rounds": 3, **_LOCAL},
    "feddf": {"rounds": 2, "distill_steps": 2, **_LOCAL},
    "feded": {"rounds": 2, "distill_steps": 2, **_LOCAL},
    "fedftg": {"rounds": 2, "iterations": 1, **_LOCAL},
    "fedgems": {"rounds": 2, "warm_up_steps": 2, "distill_steps": 1, "distill_lr": 1e-6, "public_batch": 1797,
                "server_epochs": 1, **_LOCAL},
    "fedgen": {"rounds": 2, "generator_steps": 1, "alpha": 1.0, "beta": 1.0, **_LOCAL},
    "fediod": {"rounds": 2, "steps_per_round": 2, "samples": 32, "generator_width": 4, "discriminator_width": 4,
               **_LOCAL},
    "fedkd": {"distill_rounds": 1, "distill_steps": 20, **_LOCAL},
    "fedmd": {"rounds": 2, "warm_up_steps": 2, "distill_steps": 1, "distill_lr": 1e-6, "public_batch": 1797, **_LOCAL},
    "fkd": {"rounds": 1, **_LOCAL},
    "pls": {"rounds": 1, **_LOCAL},
    "selective-fd": {"rounds": 2, "local_steps": 2, "warm_up_steps": 2, "distill_steps": 2, "public_batch": 1797,
                     "batch_size": 64, "lr": 5e-4},
}  # fmt: skip
"""Settings of the protocols that declare a private preset."""
_WIDE_PRESETS = ("fkd", "pls")
"""Whose preset adds noise to a whole message: its claim is for a whole client, and one coin must move all of it."""


_VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fedavg, preset, models uploaded", "fedavg", {"upload": "model_parameters", "momentum": 0.9}),
    ("fedavg, preset, gradients uploaded", "fedavg", {"upload": "gradient", "local_steps": 1}),
    ("fedavg, preset, secure sums", "fedavg", {"aggregation": "secure", "server_momentum": 0.5}),
    ("dafkd, preset, discriminators at home", "dafkd", {"upload_discriminator": False}),
    ("fedgen, preset, predictors alone", "fedgen", {"share": "head"}),
    ("fedkd, preset, votes", "fedkd", {"ensemble": "votes"}),
    ("fedmd, preset, hard answers", "fedmd", {"share": "hard_labels", "order": "revisit-digest"}),
    ("selective-fd, preset, soft answers", "selective-fd", {"labels": "soft", "order": "local-first"}),
)
"""Settings that change what a preset's clients send."""


def _preset(protocol: str, epsilon: float, name: str = "", **params: Any) -> Case:
    """The private preset of a protocol: at ε = 1 every record takes part in each step, else half of them by coins."""
    preset, made_of = {"name": "private", "epsilon": epsilon}, {**_PRESETS[protocol], **params}
    if protocol in _WIDE_PRESETS:
        made = _wide(protocol, made_of, preset=preset)
    else:
        rate = 1.0 if epsilon <= 1 else 0.5
        made = _deep(protocol, made_of, preset={**preset, "sample_rate": rate})
    return Case(
        name=name or f"{protocol}, preset, ε {epsilon:g}",
        spec=made,
        protocol=protocol,
        defences=("gaussian-noise",) if protocol in _WIDE_PRESETS else ("dp-sgd",),
        finite=("world",) if protocol == "centralized" else ("server",),
    )


def _noised(
    name: str,
    protocol: str,
    params: Mapping[str, Any],
    finite: str,
    *defenses: dict[str, Any],
    **changes: Any,
) -> Case:
    """A case of noise on messages, for records replaced."""
    deep = changes.pop("deep", False)
    made = (_deep if deep else _wide)(
        protocol,
        params,
        defenses=list(defenses),
        **({"design": "matched-pairs", "count": 150, "kind": "mislabelled"} if deep else {}),
        **changes,
    )
    names = tuple(str(d["name"]) for d in defenses) or ("laplace-noise",)
    return Case(name=name, spec=made, protocol=protocol, defences=names, finite=(finite,))


def _on(kind: str, name: str, sender: str = "client", **params: Any) -> dict[str, Any]:
    return {"kind": kind, "sender": sender, "name": name, "params": params}


_AVERAGED = {"rounds": 1, "local_steps": 1, "batch_size": 8, "lr": 0.05, "weighting": "uniform"}
_ANSWERED = {"rounds": 1, "warm_up_steps": 20, "local_steps": 1, "batch_size": 4, "lr": 0.5, "distill_steps": 1,
             "public_batch": 40}  # fmt: skip
_KD = {
    "local_steps": 20,
    "batch_size": 4,
    "lr": 0.5,
    "distill_rounds": 1,
    "distill_steps": 20,
    "weights": "uniform",
}
_VOTES = {"local_steps": 800, "batch_size": 64, "lr": 0.2, "momentum": 0.9, "distill_rounds": 1,
          "distill_steps": 20, "weights": "uniform", "ensemble": "votes"}  # fmt: skip
_IOD = {"rounds": 2, "steps_per_round": 1, "samples": 32, "generator_width": 4, "discriminator_width": 4,
        "weights": "uniform", "shares": "uniform", **_LOCAL}  # fmt: skip
_SIGMA = 10.0
"""Noise over clip: one message of sensitivity 2C has an ε of about 1 at δ = 1e-8."""


def _defended() -> list[Case]:
    sgd = {
        "at": "training",
        "name": "dp-sgd",
        "params": {"clip": 1.0, "noise_multiplier": 10.0, "sample_rate": 1.0},
    }
    selective = {"rounds": 1, "local_steps": 1, "warm_up_steps": 1500, "distill_steps": 1, "public_batch": 1797,
                 "selector": "none", "batch_size": 64, "lr": 0.5, "ensemble": "votes", "aggregator": "secure",
                 "labels": "hard"}  # fmt: skip
    update = "model_update"
    return [
        _noised("fedavg, noise on updates", "fedavg", _AVERAGED, "server",
                _on(update, "gaussian-noise", sigma=_SIGMA, clip=1.0)),
        _noised("fedavg, noise on gradients", "fedavg", {**_AVERAGED, "upload": "gradient"}, "server",
                _on("gradient", "dp-fedavg", sigma=_SIGMA, clip=1.0)),
        _noised("fedavg, noise on models", "fedavg", {**_AVERAGED, "upload": "model_parameters"}, "server",
                _on("model_parameters", "gaussian-noise", sigma=_SIGMA * 3, clip=3.0)),
        _noised("fedavg, laplace on updates", "fedavg", _AVERAGED, "server",
                _on(update, "laplace-noise", gamma=0.02, clip=0.005)),
        _noised("fedavg, discrete gaussian", "fedavg", _AVERAGED, "server",
                _on(update, "discrete-gaussian", sigma=5.5, clip=0.01, levels=8)),
        _noised("fedavg, discrete laplace", "fedavg", _AVERAGED, "server",
                _on(update, "discrete-laplace", gamma=0.025, clip=0.005, levels=1)),
        _noised("fedavg, dp-fedavg", "fedavg", {**_AVERAGED, "rounds": 2}, "server",
                _on(update, "dp-fedavg", sigma=1.5 * _SIGMA, clip=1.0)),
        _noised("fedavg, dp-fedavg under secure sums", "fedavg", {**_AVERAGED, "rounds": 2, "aggregation": "secure"},
                "server", _on(update, "dp-fedavg", sigma=1.5 * _SIGMA, clip=0.02, shares=_CLIENTS)),
        _noised("fedavg, momentum and outages", "fedavg", {**_AVERAGED, "rounds": 3, "server_momentum": 0.9,
                "momentum": 0.9, "local_steps": 2, "final_lr": 0.1}, "server",
                _on(update, "dp-fedavg", sigma=1.5 * _SIGMA, clip=1.0),
                outages=[{"client": 3, "round": 1}]),
        _noised("centralized, noise on the model", "centralized", {"rounds": 1, "local_steps": 800, "batch_size": 64,
                "lr": 0.2, "momentum": 0.9}, "world",
                _on("model_parameters", "gaussian-noise", sigma=_SIGMA, clip=1.0), deep=True),
        _noised("ds-fl, noise on answers", "ds-fl", _ANSWERED, "server",
                _on("soft_labels", "gaussian-noise", sigma=_SIGMA * 3, clip=3.0, public_index=True)),
        _noised("fedmd, noise on answers", "fedmd", {**_ANSWERED, "rounds": 2}, "server",
                _on("logits", "laplace-noise", gamma=0.001, clip=0.5, public_index=True)),
        _noised("fedkd, noise at the client", "fedkd", {**_KD, "levels": None, "noise_at": "client", "gamma": 0.001,
                "clip": 1.0}, "server"),
        _noised("fedkd, noise at the aggregator", "fedkd", {**_KD, "levels": 50, "z_max": 5.0, "gamma": 0.06,
                "clip": 1.0}, "server"),
        _noised("fedkd, votes under lnmax", "fedkd", _VOTES, "server",
                _on("vote_counts", "lnmax", "aggregator", gamma=0.002, public_index=True), deep=True),
        _noised("fedkd, votes under gnmax", "fedkd", _VOTES, "server",
                _on("vote_counts", "gnmax", "aggregator", sigma=700.0, public_index=True), deep=True),
        _noised("selective-fd, votes under confident-gnmax", "selective-fd", selective, "server",
                _on("vote_counts", "confident-gnmax", "aggregator", threshold=1.0, sigma_threshold=500.0, sigma=500.0,
                    public_index=True), deep=True),
        _noised("fediod, votes under gnmax, sanitised gradients", "fediod", {**_IOD, "outputs": "votes",
                "gradients_from": "one"}, "server",
                _on("vote_counts", "gnmax", "aggregator", sigma=60.0, public_index=True),
                _on("sample_gradients", "sanitized-gradients", sigma=60.0, clip=1.0, drawn_from=2), deep=True),
        Case(name="selective-fd, full-batch DP-SGD", protocol="selective-fd", defences=("dp-sgd",), finite=("server",),
             spec=_deep("selective-fd", _PRESETS["selective-fd"] | {"selector": "none"}, defenses=[sgd])),
        Case(name="fedavg, full-batch DP-SGD", protocol="fedavg", defences=("dp-sgd",), finite=("server",),
             spec=_deep("fedavg", {**_PRESETS["fedavg"], "weighting": "uniform", "momentum": 0.9, "mu": 0.1,
                                   "server_momentum": 0.5, "final_lr": 0.1, "weight_decay": 0.01}, defenses=[sgd])),
    ]  # fmt: skip


def _with_own_attacks() -> list[Case]:
    """Cases that fdaudit's own attacks read as well: class means, averages that a client hears, and uploads."""
    challenged = {"test": 0.05, "proxy": 0.0, "auxiliary": 0.2, "candidates": 4}
    found = []
    for protocol, attacks, count, epsilon in (
        ("fkd", ("prototype-regression",), 60, {"epsilon": 1.0}),
        ("pls", ("prototype-regression",), 60, {"epsilon": 1.0}),
        ("ds-fl", ("rehearsed-regression", "coin-regression"), 100, {"epsilon": 1.0, "sample_rate": 1.0}),
        ("fedavg", ("coin-regression", "loss-threshold"), 100, {"epsilon": 1.0, "sample_rate": 1.0}),
    ):
        whole_message = protocol in _WIDE_PRESETS
        made = _deep(
            protocol,
            _PRESETS[protocol],
            count=count,
            preset={"name": "private", **epsilon},
            splits=challenged,
            attacks=[{"name": name} for name in attacks],
            design="matched-pairs" if whole_message else "coin-flips",
        )
        found.append(
            Case(
                name=f"{protocol}, preset, own attacks",
                spec={**made, "adversaries": ["server", "client/1", "world"]},
                protocol=protocol,
                defences=("gaussian-noise",) if whole_message else ("dp-sgd",),
                finite=("server",),
            )
        )
    return found


def _drawn_clients() -> list[Case]:
    """DP-FedAvg with a trusted server: clients by coins, or half of them by a draw without replacement."""
    found = []
    for name, fraction, rate in (("coins", 1.0, 0.5), ("a draw of half", 0.5, 1.0)):
        rule = {"clip": 0.5, "noise_multiplier": _SIGMA, "sample_rate": rate, "expected_batch": _CLIENTS // 2}
        made = _wide(
            "fedavg",
            {**_AVERAGED, "lr": 0.5, "rounds": 2, "fraction": fraction},
            defenses=[{"at": "training", "of": "updates", "name": "dp-sgd", "params": rule}],
        )
        found.append(
            Case(
                name=f"fedavg, dp-sgd on updates, {name}",
                spec=made,
                protocol="fedavg",
                defences=("dp-sgd",),
                finite=("world", "client/1"),
            )
        )
    return found


CASES = (
    *(_preset(name, 1.0) for name in PROTOCOLS.names() if name in _PRESETS),
    *(_preset(name, 2.0) for name in PROTOCOLS.names() if name in _PRESETS and name not in _WIDE_PRESETS),
    *(_preset(protocol, 1.0, name, **params) for name, protocol, params in _VARIANTS),
    *_defended(),
    *_drawn_clients(),
    *_with_own_attacks(),
)
"""Every case, presets first."""


def case(name: str) -> Case:
    """Return the case of a name."""
    return next(c for c in CASES if c.name == name)
