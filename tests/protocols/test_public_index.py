"""An index counts as public only where the protocol promises it, and the promises hold."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY

from fdaudit.config import validate
from fdaudit.kinds import KINDS
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import Spec
from fdaudit.testing.specs import small_spec

from ..helpers.refusals import refused
from ..helpers.run_cases import known

NOISE = {
    "gaussian-noise": {"sigma": 1.0, "clip": 1.0},
    "laplace-noise": {"gamma": 1.0, "clip": 1.0},
    "discrete-gaussian": {"sigma": 1.0, "clip": 4.0},
    "discrete-laplace": {"gamma": 1.0, "clip": 4.0},
}
VOTES = {"ensemble": "votes"}


def planned(protocol: str, params: dict[str, Any], kind: str, sender: str, name: str, public: bool) -> None:
    noise = NOISE.get(name, {"sigma": 1.0})
    entry = {"kind": kind, "sender": sender, "name": name, "params": {**noise, "public_index": public}}
    spec = small_spec(protocol={"name": protocol, "params": params}, splits__proxy=0.3, defenses=[entry])
    spec["adversaries"] = ["client/0"]
    simulated_case(validate(Spec, spec), known(7))


def case_name(case: tuple[str, dict[str, Any], str, str]) -> str:
    return f"{case[0]}-{case[2]}-{case[1]}"


REFUSED = [
    ("selective-fd", {"labels": "soft"}, "soft_labels", "client"),
    ("selective-fd", {"labels": "hard"}, "hard_labels", "client"),
    ("selective-fd", {"labels": "soft", "selector": "confidence"}, "soft_labels", "client"),
    ("selective-fd", {"labels": "soft", "selector": "energy"}, "soft_labels", "client"),
    ("selective-fd", {}, "ensemble_labels", "server"),
    ("selective-fd", {"selector": "none"}, "ensemble_labels", "server"),
    ("ds-fl", {"share": "hard_labels"}, "ensemble_labels", "server"),
    ("fedmd", {"share": "hard_labels"}, "ensemble_labels", "server"),
    ("fedgems", {}, "logits", "client"),
    ("fedavg", {}, "model_update", "client"),
    ("fkd", {}, "class_prototypes", "client"),
]
ACCEPTED = [
    ("selective-fd", {"labels": "soft", "selector": "none"}, "soft_labels", "client"),
    ("cronus", {}, "ensemble_labels", "server"),
    ("fedgems", {}, "logits", "server"),
    ("ds-fl", {}, "soft_labels", "client"),
    ("ds-fl", {}, "ensemble_labels", "server"),
    ("fedmd", {}, "logits", "client"),
    ("fedmd", {"share": "soft_labels"}, "ensemble_labels", "server"),
    ("feded", {}, "soft_labels", "client"),
    ("fedkd", {"weights": "uniform", "clip": 2.0}, "ensemble_labels", "aggregator"),
    ("fediod", {}, "logits", "client"),
    ("dafkd", {"upload_discriminator": False}, "soft_labels", "client"),
]


def refused_cases() -> Iterator[Any]:
    """Every kind of noise on one message, and Gaussian noise on every other; the rest repeat these."""
    for case, name in product(REFUSED, NOISE):
        repeats = case is not REFUSED[0] and name != "gaussian-noise"
        yield pytest.param(
            case, name, id=f"{case_name(case)}-{name}", marks=[pytest.mark.thorough] if repeats else []
        )


@pytest.mark.parametrize(("case", "name"), list(refused_cases()))
def test_an_index_that_the_protocol_does_not_promise_is_refused_as_public(case: Any, name: str) -> None:
    protocol, params, kind, sender = case
    index = partial(planned, protocol, params, kind, sender, name)
    refused(lambda: index(public=True), "defenses.0.params.public_index", True, ["false"], said=protocol)
    if name == "gaussian-noise":
        planned(protocol, params, kind, sender, name, public=False)


@pytest.mark.parametrize("case", ACCEPTED, ids=case_name)
def test_a_promised_index_may_be_called_public(case: Any) -> None:
    protocol, params, kind, sender = case
    planned(protocol, params, kind, sender, "gaussian-noise", public=True)


@pytest.mark.parametrize(
    ("protocol", "params", "sender"),
    [
        ("fedkd", VOTES, "aggregator"),
        ("fediod", {"outputs": "votes", "weights": "uniform", "shares": "uniform"}, "aggregator"),
        ("selective-fd", VOTES, "server"),
        ("selective-fd", {**VOTES, "aggregator": "secure"}, "aggregator"),
    ],
)
def test_pate_aggregators_keep_their_public_index(protocol: str, params: dict[str, Any], sender: str) -> None:
    planned(protocol, params, "vote_counts", sender, "gnmax", public=True)


def test_every_shipped_entry_with_an_index_says_what_decides_it() -> None:
    """Left without a promise: what selectors decline, what a threshold leaves out, what a defence answers."""
    silent = {
        (name, m["kind"], m["from"])
        for name in REGISTRY.names()
        for m in REGISTRY.load(name).card.messages
        if any(t.name == "index" for t in KINDS[m["kind"]].tensors)
        and m.get("index") != "public"
        and "made_of" not in m
    }
    assert silent == {
        ("selective-fd", "soft_labels", "client"),
        ("selective-fd", "hard_labels", "client"),
        ("selective-fd", "ensemble_labels", "server"),
        ("cronus", "ensemble_labels", "server"),
        ("ds-fl", "ensemble_labels", "server"),
        ("fedgems", "proxy_indices", "server"),
        ("fedgems", "logits", "client"),
        ("fedmd", "ensemble_labels", "server"),
    }
