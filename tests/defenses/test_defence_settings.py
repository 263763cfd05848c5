"""Settings of the defences that are refused by name."""

from __future__ import annotations

import pytest

from ..helpers.defence_cases import defence
from ..helpers.refusals import refused

CONFIDENT = {"threshold": 1.0, "sigma": 1.0, "sigma_threshold": 1.0}
DP_SGD = {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.1}
REFUSED = [
    ("confident-gnmax", {"sigma": 1.0, "sigma_threshold": 1.0}, "threshold"),
    ("confident-gnmax", {**CONFIDENT, "sigma_threshold": 0.0}, "sigma_threshold"),
    ("confident-gnmax", {**CONFIDENT, "cap": 0}, "cap"),
    ("dp-fedavg", {"clip": 1.0}, "sigma"),
    ("dp-fedavg", {"clip": 0, "sigma": 1.0}, "clip"),
    ("dp-fedavg", {"clip": 1.0, "sigma": 1.0, "shares": 0}, "shares"),
    ("dp-sgd", {**DP_SGD, "clip": 0}, "clip"),
    ("dp-sgd", {**DP_SGD, "clip": -1.0}, "clip"),
    ("dp-sgd", {**DP_SGD, "clip": None}, "clip"),
    ("dp-sgd", {**DP_SGD, "noise_multiplier": 0.0}, "noise_multiplier"),
    ("dp-sgd", {**DP_SGD, "sample_rate": 0.0}, "sample_rate"),
    ("dp-sgd", {**DP_SGD, "sample_rate": 1.01}, "sample_rate"),
    ("dp-sgd", {**DP_SGD, "expected_batch": 0}, "expected_batch"),
    ("gaussian-noise", {}, "sigma"),
    ("gaussian-noise", {"sigma": 0}, "sigma"),
    ("gaussian-noise", {"sigma": -1.0}, "sigma"),
    ("gaussian-noise", {"sigma": 1.0, "clip": 0}, "clip"),
    ("gaussian-noise", {"sigma": 1.0, "clp": 1}, "clp"),
    ("gnmax", {"sigma": -1.0}, "sigma"),
    ("gnmax", {"sigma": 1.0, "cap": 3}, "cap"),
    ("hard-label", {"k": 1}, "k"),
    ("laplace-noise", {}, "gamma"),
    ("laplace-noise", {"gamma": 0}, "gamma"),
    ("laplace-noise", {"gamma": -1.0}, "gamma"),
    ("laplace-noise", {"gamma": 1.0, "clip": 0}, "clip"),
    ("laplace-noise", {"gamma": 1.0, "scale": 1.0}, "scale"),
    ("lnmax", {}, "gamma"),
    ("lnmax", {"gamma": 0}, "gamma"),
    ("rounding", {"decimals": -1}, "decimals"),
    ("sanitized-gradients", {"sigma": 1.0}, "clip"),
    ("sanitized-gradients", {"clip": 1.0, "sigma": 0}, "sigma"),
    ("sanitized-gradients", {"clip": 1.0, "sigma": 1.0, "drawn_from": 0}, "drawn_from"),
    ("temperature", {}, "temperature"),
    ("temperature", {"temperature": 0}, "temperature"),
    ("top-k", {"k": 0}, "k"),
    ("top-k", {"values": "votes"}, "values"),
    ("uniform-quantization", {"levels": 1}, "levels"),
    ("uniform-quantization", {"levels": 2**16}, "levels"),
    ("uniform-quantization", {"levels": 2.5}, "levels"),
    ("uniform-quantization", {"z_max": 0}, "z_max"),
    ("uniform-quantization", {"grid": "eq5"}, "grid"),
    ("uniform-quantization", {"level": 3}, "level"),
]


@pytest.mark.parametrize(("name", "params", "field"), REFUSED, ids=str)
def test_an_impossible_setting_is_refused_by_name(name, params, field):
    refused(lambda: defence(name, **params), f"defenses.0.params.{field}", params.get(field))


@pytest.mark.parametrize(
    ("name", "params", "word"),
    [
        ("gaussian-noise", {"sigma": 1.0, "bound": 1.0, "clip": 1.0}, "Clip the whole message, or each value"),
        *(("discrete-laplace", {"gamma": 1 / scale, **p}, word) for scale, p, word in [
            (1e-4, {"clip": 1.0, "levels": 2}, "Change levels"),
            (100.0, {"clip": 1.0, "levels": 200}, "fewer levels"),
        ]),
        *(("discrete-gaussian", {"sigma": scale, **p}, word) for scale, p, word in [
            (1e-4, {"clip": 1.0, "levels": 2}, "Change levels"),
            (100.0, {"clip": 1.0, "levels": 200}, "fewer levels"),
        ]),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(name, params, word):
    refused(lambda: defence(name, **params), "defenses.0.params", params, [word])


@pytest.mark.parametrize("params", [{}, {"clip": 0.0}, {"clip": 1.0, "levels": 0}], ids=str)
@pytest.mark.parametrize(("name", "noise"), [("discrete-laplace", "gamma"), ("discrete-gaussian", "sigma")])
def test_a_grid_needs_its_clip_and_levels(name, noise, params):
    field = "levels" if "levels" in params else "clip"
    refused(lambda: defence(name, **{noise: 1.0}, **params), f"defenses.0.params.{field}", params.get(field))
