"""Mistakes in a spec, for the tests that each is one line: unknown, mistyped, out of range, impossible together."""

from __future__ import annotations

from typing import Any


def noise(kind: str, name: str = "gaussian-noise", **params: float) -> dict[str, Any]:
    return {"defenses": [{"kind": kind, "name": name, "params": params or {"sigma": 1.0}}]}


def running(protocol: str, **params: Any) -> dict[str, Any]:
    return {"protocol": {"name": protocol, "params": params}}


def attacking(**fields: Any) -> dict[str, Any]:
    return {"attacks": [{"name": "loss-threshold", **fields}]}


IN_SPECS: list[tuple[dict[str, Any], str, str, str]] = [
    # what is changed in a good spec, the field, the value, a word of the remedy
    # unknown keys, with the nearest name
    ({"atacks": []}, "atacks", "[]", "Did you mean 'attacks'?"),
    ({"Clients": 2}, "Clients", "2", "Did you mean 'clients'?"),
    ({"a[0]": 2}, "a[0]", "2", "Valid names"),
    ({"dataset__nmae": "digits"}, "dataset.nmae", "'digits'", "Did you mean 'name'?"),
    ({"protocol__params": {"round": 2}}, "protocol.params.round", "2", "Did you mean 'rounds'?"),
    ({"model__params": {"width": [4]}}, "model.params.width", "[4]", "'widths'"),
    (attacking(params={"flor": 0.1}), "attacks.0.params.flor", "0.1", "Did you mean 'floor'?"),
    (noise("model_update", sgima=1.0), "defenses.0.params.s", "", ""),
    # wrong types
    ({"clients": "two"}, "clients", "'two'", "Give"),
    ({"name": 5}, "name", "5", "Give a string"),
    ({"clients": 2.5}, "clients", "2.5", "Give a whole number"),
    ({"clients": True}, "clients", "True", "Give"),
    ({"protocol__params__lr": "1e-3"}, "protocol.params.lr", "'1e-3'", "Write 0.001"),
    ({"dataset": ["digits"]}, "dataset", "['digits']", "Write a mapping"),
    ({"attacks": ["gap"]}, "attacks.0", "'gap'", "Write `name: gap`"),
    ({"attacks": "some"}, "attacks", "'some'", "all"),
    ({"name": __import__("datetime").date(2020, 1, 1)}, "name", "2020", "in quotes"),
    # out of range
    ({"clients": 0}, "clients", "0", "at least 1"),
    ({"protocol__params": {"rounds": 0}}, "protocol.params.rounds", "0", "at least 1"),
    ({"protocol__params__fraction": 1.5}, "protocol.params.fraction", "1.5", "at most 1"),
    ({"protocol__params__lr": -0.1}, "protocol.params.lr", "-0.1", "greater than 0"),
    ({"protocol__params__lr": float("nan")}, "protocol.params.lr", "nan", "Change"),
    ({"protocol__params__lr": float("inf")}, "protocol.params.lr", "inf", "Change"),
    ({"seed": -1}, "seed", "-1", "at least 0"),
    ({"seed": 2**64}, "seed", str(2**64), "less than"),
    ({"gates": {"membership_auc": 1.5}}, "gates.membership_auc", "1.5", "at most 1"),
    ({"name": ""}, "name", "''", "Change"),
    ({"fdaudit": 2}, "fdaudit", "2", "1"),
    # unknown names, with the nearest
    (running("fedagv"), "protocol.name", "'fedagv'", "'fedavg'"),
    ({"model": {"name": "mpl"}}, "model.name", "'mpl'", "'mlp'"),
    ({"dataset": {"name": "digit"}}, "dataset.name", "'digit'", "'digits'"),
    ({"partition": {"name": "idd"}}, "partition.name", "'idd'", "'iid'"),
    ({"profile": "quik"}, "profile", "'quik'", "'quick'"),
    ({"references": ["centralised"]}, "references.0", "'centralised'", "'centralized'"),
    ({"attacks": [{"name": "loss-treshold"}]}, "attacks.0.name", "'loss-treshold'", "'loss-threshold'"),
    (noise("model_update", name="gausian-noise"), "defenses.0.name", "'gausian-noise'", "'gaussian-noise'"),
    ({"adversaries": ["servr"]}, "adversaries", "'servr'", "'server'"),
    ({"adversaries": ["client/2"]}, "adversaries", "'client/2'", "client/1"),
    ({"adversaries": ["server+client/02"]}, "adversaries", "'server+client/02'", "client"),
    (attacking(adversaries=["client/9"]), "attacks.0.adversaries", "'client/9'", "client/1"),
    ({"device": "gpu"}, "device", "'gpu'", "auto|cpu|cuda"),
    # impossible combinations
    ({"victims": 3}, "victims", "3", "fewer victims"),
    ({"adversaries": ["aggregator"]}, "adversaries", "'aggregator'", "server"),
    (running("standalone", rounds=1), "adversaries", "'server'", "world"),
    (running("fedavg", local_steps=2, local_epochs=2), "protocol.params", "'local_epochs': 2", "Give one"),
    (running("fedavg", upload="gradient", local_steps=2), "protocol.params", "'local_steps': 2", "to 1"),
    (running("fedavg", upload="gradient", momentum=0.9), "protocol.params", "'momentum': 0.9", "to 0"),
    (
        {
            "protocol__params": {"upload": "gradient"},
            "model": {"name": "resnet8", "params": {"norm": "batch"}},
            "dataset__image_size": 16,
        },
        "protocol.params.upload",
        "'gradient'",
        "'model_update'",
    ),
    ({"partition": {"name": "iid", "classes_per_client": 2}}, "partition.classes_per_client", "2", "Remove"),
    ({"partition": {"name": "dirichlet"}}, "partition.alpha", "None", "Add alpha"),
    ({"splits__test": 0.9}, "splits", "1.0", "sum to less than 1"),
    ({"splits__test": 0.0}, "splits.test", "0.0", "Raise"),
    (attacking() | {"splits__auxiliary": 0.0}, "splits.auxiliary", "0.0", "Raise it"),
    ({"attacks": [{"name": "loss-threshold"}] * 2}, "attacks.1.name", "'loss-threshold'", "Keep one"),
    ({"record": {"rounds": [0, 2]}}, "record.rounds", "2", "from 0 to 1"),
    ({"record": {"rounds": []}}, "record.rounds", "[]", ""),
    (noise("soft_labels"), "defenses.0.kind", "'soft_labels'", "model_update"),
    (noise("gradient"), "defenses.0.kind", "'gradient'", "model_update"),
    (noise("gradients"), "defenses.kind", "'gradients'", "'gradient'"),
    ({"withhold": ["model_update"]}, "withhold.0", "'model_update'", "sample_count"),
    # parties
    ({"client_models": [{"name": "mlp"}]}, "client_models", "1 networks for 2 clients", "one a client"),
    (
        {"client_models": [{"name": "mlp", "params": {"widths": [4]}}, {"name": "mlp"}]},
        "client_models.1.name",
        "'mlp'",
        "exchanges predictions",
    ),
    (
        running("standalone")
        | {"adversaries": ["client/0"], "client_models": [{"name": "mlp"}, {"name": "cnn-5-5"}]},
        "client_models.1.name",
        "'cnn-5-5'",
        "dataset.image_size",
    ),
    (
        {"public_dataset": {"name": "digits", "image_size": 16}},
        "public_dataset.name",
        "1x16x16",
        "image_size",
    ),
    (
        {"public_dataset": {"name": "mnist", "root": "{folder}/nothing"}},
        "public_dataset.root",
        "nothing'",
        "download: true",
    ),
    ({"outages": [{"client": 2, "round": 0}]}, "outages.0.client", "2", "Clients count from 0 to 1"),
    ({"outages": [{"client": 0, "round": 2, "last": 1}]}, "outages", "1", "leave it out"),
    # protocols
    (running("fedkd", levels=1), "protocol.params.levels", "1", "equal to 2"),
    (running("fedkd", gamma=0), "protocol.params.gamma", "0", "greater than 0"),
    (running("fedkd", temperature=-1.0), "protocol.params.temperature", "-1.0", "greater than 0"),
    (running("selective-fd", tau_client=1.5), "protocol.params.tau_client", "1.5", "less than"),
    (running("selective-fd", tau_server=2.5), "protocol.params.tau_server", "2.5", "equal to 2"),
    (running("fedkd"), "splits.proxy", "0.0", "name a public dataset"),
    (running("fediod") | {"dataset__image_size": 4}, "dataset.image_size", "4x4", "Set it to 8"),
    (running("fediod") | {"dataset": {"name": "digits-multilabel"}}, "protocol.name", "'fediod'", "that do:"),
]
