"""Settings of the protocols: which are refused by name, and that each of the others changes something."""

from __future__ import annotations

import pytest
from fdaudit.protocols import REGISTRY

from fdaudit.config import validate
from fdaudit.errors import TrainingDivergedError
from fdaudit.federation.protocol import PartyData
from fdaudit.testing.federation import records

from ..helpers.by_hand import equal
from ..helpers.protocol_cases import VOTES, run
from ..helpers.refusals import refused

OUT_OF_RANGE = {
    "dafkd": {
        "adversarial": [-1],
        "fraction": [0, 1.1],
        "generator_lr": [0],
        "latent": [0],
        "pseudo_samples": [0],
        "temperature": [0],
        "weights": ["eq8"],
    },
    "fedavg": {
        "fraction": [0.0, 1.1],
        "lr": [-0.1],
        "momentun": [0.9],
        "rounds": [0],
        "server_momentum": [1.0],
        "upload": ["gradients"],
    },
    "fediod": {
        "adam_lr": [0.0],
        "gan_total": ["plain"],
        "gradients_from": ["two"],
        "mimic": [-0.1],
        "outputs": ["labels"],
        "rounds": [1],
        "student_steps": [0],
        "temperature": [0.0, -1.0],
        "weights": ["eq9"],
    },
    "fedkd": {
        "clip": [-1.0],
        "distill_rounds": [0],
        "gamma": [0, -1.0],
        "levels": [1, 2**16],
        "noise_at": ["server"],
        "rounds": [3],
        "temperature": [0, -2.0],
        "weights": ["counts"],
        "z_max": [0],
    },
    "selective-fd": {
        "bandwidth": [0.0],
        "beta": [-1.0],
        "distill_lr": [0.0],
        "labels": ["logits"],
        "landmarks": [0],
        "selector": ["ratio"],
        "tau_client": [-0.1, 1.0],
        "tau_server": [0.0, 2.5],
        "validation": [1.0],
    },
}
SUGGESTED = {"gradients": "'gradient'", "momentun": "'momentum'", "eq9": "'eq8'", "counts": "'class-counts'"}
"""Remedies of values and keys that are misspelt."""
BALLOTS = {"ensemble": "votes"}
CONTRADICTIONS = [
    ("dafkd", {"ensemble": "logits", "upload_discriminator": False}, "Change one"),
    ("dafkd", {"conditional": False}, "to 0"),
    ("dafkd", {"optimizer": "adam", "momentum": 0.9}, "Leave one"),
    ("fedavg", {"upload": "gradient", "local_steps": 2}, "local_steps to 1"),
    ("fedavg", {"upload": "gradient", "local_epochs": 1}, "local_steps to 1"),
    ("fedavg", {"upload": "gradient", "momentum": 0.9}, "upload to 'model_update'"),
    ("fedavg", {"upload": "gradient", "mu": 0.1}, "upload to 'model_update'"),
    ("fedavg", {"local_steps": 1, "local_epochs": 1}, "one of them"),
    ("fedavg", {"aggregation": "secure"}, "weighting to 'uniform' or 'public'"),
    ("fedavg", {"aggregation": "secure", "weighting": "samples"}, "weighting to 'uniform' or 'public'"),
    *(
        ("fedavg", {"aggregation": "secure", "weighting": "uniform", "upload": upload}, "'model_update'")
        for upload in ("model_parameters", "gradient")
    ),
    ("fediod", {"local_steps": 1, "local_epochs": 1}, "one of them"),
    ("fediod", {"gan": 0.0, "conf": 0.0, "unique": 0.0, "mimic": 0.0}, "Raise one"),
    ("fediod", {**VOTES, "gan": 0.0, "mimic": 0.0}, "Raise one"),
    ("fediod", {"fresh": True}, "Leave one"),
    ("fediod", {"fresh": True, "weights": "uniform", "outputs": "votes"}, "Leave one"),
    ("fediod", {"outputs": "votes"}, "both to 'uniform'"),
    ("fediod", {"outputs": "votes", "weights": "uniform"}, "both to 'uniform'"),
    ("fediod", {"outputs": "votes", "shares": "uniform", "weights": "samples"}, "both to 'uniform'"),
    ("fedkd", {"local_steps": 5, "local_epochs": 2}, "one of them"),
    *(
        ("fedkd", {**BALLOTS, name: value}, f"Leave {name} out")
        for name, value in {
            "clip": 1.0,
            "gamma": 1.0,
            "levels": 200,
            "noise_at": "client",
            "weights": "class-counts",
            "z_max": 4.0,
        }.items()
    ),
    ("selective-fd", {"aggregator": "secure"}, "ensemble to 'votes'"),
    ("selective-fd", {**BALLOTS, "labels": "soft"}, "labels to 'hard'"),
    ("selective-fd", {**BALLOTS, "tau_server": 1.0}, "Leave tau_server out"),
]
CHANGES = {
    "dafkd": [
        {"interleaved": True},
        {"gradient_penalty": 1.0},
        {"optimizer": "adam"},
        {"conditional": False, "recognised": 0.0},
    ],
    "fedftg": [
        {"ensemble": "uniform"},
        {"labels": "uniform"},
        {"iterations": 0},
        {"diversity": 0.0},
        {"recognised": 0.0},
    ],
    "fedgen": [
        {"alpha": 0.0},
        {"beta": 0.0},
        {"decay": 0.5},
        {"diversity": 0.0},
        {"ensemble": "logits"},
        {"generated": 6},
        {"generator_lr": 0.01},
        {"generator_steps": 1},
        {"generator_weight_decay": 1.0},
        {"labels": "classes"},
        {"weighting": "uniform"},
        {"weight_decay": 0.1},
        {"final_lr": 0.01},
    ],
    "fediod": [{"student_optimizer": "sgd"}, {"student_lr": 0.01}, {"balance": 5.0}],
}
BASE = {
    "fedftg": {"local_steps": 2, "iterations": 2, "distill_batch_size": 50},
    "fedgen": {"local_steps": 2, "lr": 0.1, "alpha": 1.0, "beta": 1.0, "generated": 20},
}
"""Settings under which the others show."""
DIVERGING = [
    ("dafkd", {"lr": 1e30, "local_steps": 4}, "client/0"),
    ("fediod", {"adam_lr": 1e30}, r"(server|client/\d)"),
    ("fedkd", {"lr": 1e30, "local_steps": 9}, "client/0"),
    ("fedkd", {"distill_optimizer": "sgd", "distill_lr": 1e30, "distill_steps": 9}, "server"),
    ("selective-fd", {"lr": 1e30}, r"client/\d"),
]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [(name, f, v) for name, fields in OUT_OF_RANGE.items() for f, values in fields.items() for v in values],
)
def test_a_setting_out_of_range_is_refused_by_name(name, field, value):
    remedy = [word for wrong, word in SUGGESTED.items() if wrong in (field, value)]
    config = REGISTRY.load(name).Config
    refused(
        lambda: validate(config, {field: value}, "protocol.params"), f"protocol.params.{field}", value, remedy
    )


@pytest.mark.parametrize(("name", "params", "remedy"), CONTRADICTIONS, ids=str)
def test_settings_that_contradict_each_other_are_refused_with_a_remedy(name, params, remedy):
    config = REGISTRY.load(name).Config
    refused(lambda: validate(config, params, "protocol.params"), "protocol.params", params, [remedy])


@pytest.mark.parametrize(
    ("name", "change"), [(name, c) for name, changes in CHANGES.items() for c in changes], ids=str
)
def test_each_setting_changes_the_model(name, change, tmp_path):
    clients = {k: PartyData(d.x, d.y.clamp_min(1)) for k, d in records().items()}  # none of class 0
    one, other = (
        run(tmp_path / str(i), name, {**BASE.get(name, {}), **c}, rounds=2, clients=clients)
        for i, c in enumerate(({}, change))
    )
    assert not equal(one.protocol.released(), other.protocol.released())


@pytest.mark.parametrize(("name", "params", "party"), DIVERGING, ids=str)
def test_a_loss_that_is_not_finite_names_the_party(name, params, party, tmp_path):
    said = rf"^{party}: the loss at local step \d+ is (nan|inf)"
    with pytest.raises(TrainingDivergedError, match=said):
        run(tmp_path / "a", name, params)


@pytest.mark.parametrize("name", ["dafkd", "fediod"])
def test_clients_side_by_side_end_bit_for_bit_as_one_after_the_other(name, undisturbed, tmp_path):
    other = run(tmp_path / "a", name, threads=2)
    assert other.setting.trainers["server"].execution.threads == 2
    one = undisturbed((name, {}))
    assert (one.log, one.states) == (other.log, other.states)


@pytest.mark.parametrize(
    ("name", "params", "alone"),
    [
        ("dafkd", {"rounds": 4, "local_steps": 7, "lr": 0.2, "momentum": 0.3}, {}),
        ("ds-fl", {"local_steps": 1, "distill_steps": 10}, {"local_steps": 11}),
        ("ds-fl", {"local_epochs": 2}, {}),
        ("fedmd", {"local_steps": 1, "distill_steps": 10}, {"local_steps": 11}),
        ("fedmd", {"local_epochs": 2}, {}),
        ("fediod", {}, {"rounds": 1, "local_epochs": 50}),
        (
            "fediod",
            {"local_steps": 7, "lr": 0.3, "batch_size": 5},
            {"rounds": 1, "local_epochs": None},
        ),
    ],
    ids=str,
)
def test_the_reference_line_trains_as_much_as_a_client(name, params, alone):
    """`alone`: what differs from the protocol's own settings."""
    found = validate(REGISTRY.load(name).Config, params).alone()
    kept = {n: v for n, v in params.items() if n != "distill_steps"}
    assert {**kept, **alone}.items() <= found.items()


def test_votes_imply_the_settings_that_go_with_them_and_can_be_written_down_again():
    config = REGISTRY.load("fedkd").Config
    made = validate(config, BALLOTS)
    assert (made.weights, made.levels, made.gamma, made.defenses()) == ("uniform", None, None, ())
    assert validate(config, made.model_dump()) == made
    assert validate(config, {}).weights == "class-counts"
