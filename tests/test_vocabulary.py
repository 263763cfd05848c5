"""The words every room uses: randomness, errors, events, configurations, the spec."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field
from scipy.stats import kstest

from fdaudit.config import Config, validate
from fdaudit.errors import FdauditError, IntegrityError, SpecError, UsageError, nearest
from fdaudit.events import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    NoGuarantee,
    PureDP,
    SampledGaussian,
    event_from_json,
    event_to_json,
)
from fdaudit.names import name_problem, text_problem, visible
from fdaudit.planning.simulated import simulated_case
from fdaudit.recording.recorder import is_name
from fdaudit.rng import SecretStream, child, child_numpy, child_seed
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.storage.files import decode, encode

from .helpers.hostile_names import NAMES, NO_NAME, NO_TEXT
from .helpers.run_cases import known

SECRET = b"sixteen bytes and more"

# -- randomness ---------------------------------------------------------------------------------------------------

PARTS = st.one_of(st.text(max_size=8), st.integers(-(2**40), 2**40))
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(seed=st.integers(0, 2**63 - 1), one=PATHS, two=PATHS)
def test_children_differ_exactly_when_their_paths_do(seed, one, two):
    assert (child_seed(seed, *one) == child_seed(seed, *two)) == (one == two)
    assert child_seed(seed, *one) != child_seed(seed + 1, *one)
    assert 0 <= child_seed(seed, *one) < 2**64


def test_children_are_distinct_known_and_need_a_path() -> None:
    seeds = [
        child_seed(0, *p) for p in (("a", "b"), ("ab",), ("a,b",), ('a","b',), ("1",), (1,), (1, 1), (11,))
    ]
    assert len(set(seeds)) == len(seeds)
    first = torch.rand(5, generator=child(9, "train", 3, "client/1"))
    for other in range(20):
        torch.rand(100, generator=child(9, "train", other, "client/0"))
    assert torch.equal(first, torch.rand(5, generator=child(9, "train", 3, "client/1")))
    numbers = child_numpy(9, "score").random(5)
    assert (numbers == child_numpy(9, "score").random(5)).all()
    import hashlib

    digest = hashlib.sha256(b'[7,"train",2]').digest()
    assert child_seed(7, "train", 2) == int.from_bytes(digest[:8], "big")
    with pytest.raises(ValueError, match="Name the stage"):
        child_seed(1)


def test_draws_are_uniform_normal_and_independent_of_each_other() -> None:
    stream = SecretStream(SECRET, "test")
    assert kstest(stream.uniform(20_000), "uniform").pvalue > 0.01
    assert kstest(stream.normal(20_000), "norm").pvalue > 0.01
    assert kstest(SecretStream(SECRET, "other").normal(200, 100).flatten(), "norm").pvalue > 0.01
    one, two = stream.normal(20_000), stream.normal(20_000)
    assert abs(np.corrcoef(one, two)[0, 1]) < 4 / math.sqrt(20_000)
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 4 / math.sqrt(20_000)
    with pytest.raises(ValueError, match="at least 16"):
        SecretStream(b"short", "x")


@pytest.mark.parametrize(("byte", "side"), [(b"\xff", "low"), (b"\x00", "high")])
def test_even_the_extreme_words_give_finite_noise(monkeypatch, byte, side):
    monkeypatch.setattr(SecretStream, "bytes", lambda self, n: byte * n)
    stream = SecretStream(SECRET, "test")
    (u,) = stream.uniform(1)
    assert 0 < u < 1
    assert np.isfinite(stream.normal(3)).all()
    assert abs(float(stream.normal(1)[0])) > 7


@settings(deadline=None, max_examples=50)
@given(one=PATHS, two=PATHS)
def test_a_secret_stream_is_a_function_of_secret_and_path(one, two):
    assert SecretStream(SECRET, *one).bytes(32) == SecretStream(SECRET, *one).bytes(32)
    assert (SecretStream(SECRET, *one).bytes(32) == SecretStream(SECRET, *two).bytes(32)) == (one == two)
    assert SecretStream(SECRET, *one).bytes(32) != SecretStream(SECRET + b"!", *one).bytes(32)
    stream = SecretStream(SECRET, *one)
    assert stream.bytes(16) != stream.bytes(16)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_shapes_are_kept(shape):
    assert np.shape(SecretStream(SECRET, "s").uniform(*shape)) == shape
    assert np.shape(SecretStream(SECRET, "s").normal(*shape)) == shape


# -- errors -------------------------------------------------------------------------------------------------------


def test_errors_name_the_field_and_exit_codes_are_documented() -> None:
    error = UsageError("a.b", "x" * 500, "PROBLEM", "REMEDY")
    assert str(error).startswith("a.b: 'xxx")
    assert str(error).endswith("... PROBLEM. REMEDY")
    assert len(str(error)) < 260
    assert (error.field, error.value) == ("a.b", "x" * 500)
    assert (error.problem, error.remedy) == ("PROBLEM", "REMEDY")
    errors = FdauditError("x"), SpecError("a", 1, "b", "c"), IntegrityError(["x"])
    assert [error.exit_code for error in errors] == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "known"), [("fedavgg", "fedavg"), ("standalon", "standalone"), ("FEDAVG", ""), ("", "")]
)
def test_the_nearest_name_is_suggested_and_all_are_listed(value, known):
    hint, _, listed = nearest(value, ["standalone", "fedavg"]).rpartition("Valid names: ")
    assert (f"'{known}'" in hint) == bool(hint) == bool(known)
    assert listed == "fedavg, standalone."


# -- events -------------------------------------------------------------------------------------------------------

POSITIVE = st.floats(1e-12, 1e12, allow_nan=False)
NOISES = st.builds(
    lambda cls, **f: cls(**f),
    st.sampled_from([Gaussian, Laplace, DiscreteGaussian, DiscreteLaplace]),
    sensitivity=POSITIVE,
    scale=POSITIVE,
    unit=st.sampled_from(["record", "client"]),
    relation=st.sampled_from(["add-or-remove", "replace-one"]),
    covers=st.sampled_from([("data",), ("messages",), ("data", "messages"), ("each-client",)]),
    count=st.integers(1, 10**6),
)
SHARED = {"unit": "client", "relation": "replace-one", "covers": ("each-client",)}
PARTS = st.one_of(
    st.builds(lambda e, n: PureDP(epsilon=e, count=n, **SHARED), POSITIVE, st.integers(1, 99)),
    st.builds(
        lambda q: SampledGaussian(sensitivity=1.0, scale=1.0, sample_rate=q, **SHARED), st.floats(1e-9, 1)
    ),
    st.builds(lambda n: Gaussian(sensitivity=1.0, scale=1.0, drawn_from=n, **SHARED), st.integers(1, 99)),
)
EVENTS = st.one_of(
    NOISES,
    PARTS,
    st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: Composed(parts=tuple(parts))),
    st.text(min_size=1).filter(str.strip).map(lambda r: NoGuarantee(reason=r)),
)


@given(event=EVENTS)
def test_an_event_survives_json(event):
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


GOOD = event_to_json(
    Gaussian(sensitivity=1.0, scale=2.0, unit="client", relation="replace-one", covers=("data",))
)


CHANGES = (
    {"event": "Gauss"}, {"event": None}, {"event": ["Gaussian"]}, {"sensitivity": 0}, {"sensitivity": -1.0},
    {"sensitivity": float("nan")}, {"sensitivity": float("inf")}, {"sensitivity": "1"}, {"scale": 0.0},
    {"scale": None}, {"unit": "person"}, {"unit": []}, {"relation": "swap"}, {"covers": []}, {"covers": "data"},
    {"covers": 7}, {"covers": ["data", "time"]}, {"covers": [["data"]]}, {"count": 0}, {"count": 1.5},
    {"count": "2"}, {"extra": 1}, {"event": "NoGuarantee"},
)  # fmt: skip
WRONG_PARTS = (
    None, [], [None], [{}], [{**GOOD, "event": "NoGuarantee"}], [{"event": "Composed", "parts": [GOOD]}],
    [GOOD, {**GOOD, "unit": "record"}], [GOOD, {**GOOD, "covers": ["messages"]}], [{**GOOD, "count": True}],
    [{**GOOD, "drawn_from": 0}], [{**GOOD, "event": "SampledGaussian", "sample_rate": 0}],
    [{**GOOD, "event": "PureDP", "epsilon": 1}],
)  # fmt: skip
NO_REASON = [{"event": "NoGuarantee", "reason": reason} for reason in (5, " ")]


@pytest.mark.parametrize(
    "value",
    [
        *({**GOOD, **change} for change in CHANGES),
        *({"event": "Composed", "parts": parts} for parts in WRONG_PARTS),
        *(None, [], "Gaussian", 3, {}, *NO_REASON),
    ],
    ids=str,
)
def test_what_is_no_event_is_damage(value):
    with pytest.raises(IntegrityError):
        event_from_json(value)


# -- tensors on disk ----------------------------------------------------------------------------------------------


def test_decoded_tensors_come_in_the_order_of_their_names():
    tensors = {f"layer{i}": torch.full((2,), float(i)) for i in (3, 1, 7, 0, 5, 2)}
    for _ in range(20):  # the library's own order changes from call to call
        assert list(decode(encode(tensors))) == sorted(tensors)


# -- configurations -----------------------------------------------------------------------------------------------


class Inner(Config):
    depth: int = Field(1, ge=1, le=5)


class Outer(Config):
    name: str
    mode: Literal["fast", "slow"] = "fast"
    share: float = Field(0.5, gt=0, lt=1)
    code: Annotated[str, Field(pattern=r"^[a-z]+$")] = "a"
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ({}, "x.name", "is missing"),
        ({"name": "a", "mod": 1}, "x.mod", "Did you mean 'mode'"),
        ({"name": "a", "mode": "fats"}, "x.mode", "Did you mean 'fast'"),
        ({"name": "a", "share": 0}, "x.share", "greater than 0"),
        ({"name": "a", "share": 1.0}, "x.share", "less than 1"),
        ({"name": "a", "share": "0.5"}, "x.share", "Give a number"),
        ({"name": "a", "share": float("nan")}, "x.share", "is refused"),
        ({"name": 3}, "x.name", "is refused"),
        ({"name": "a", "code": "A1"}, "x.code", "Write it as"),
        ({"name": "a", "inner": {"depth": 9}}, "x.inner.depth", "at most 5"),
        ({"name": "a", "inner": {"dept": 2}}, "x.inner.dept", "Did you mean 'depth'"),
        ({"name": "a", "inner": 3}, "x.inner", "mapping"),
        ({"name": "a", "inner": {"depth": 1.5}}, "x.inner.depth", "whole number"),
        ({"name": "a", "inner": {"depth": True}}, "x.inner.depth", "whole number"),
        ({"name": "a", "many": [{"depth": 1}, {"depht": 1}]}, "x.many.1.depht", "Did you mean 'depth'"),
        ({"name": NotImplemented}, "x.name", "plain data"),
        ([1], "x", "is not a mapping"),
    ],
    ids=str,
)
def test_a_mistake_is_one_error_that_names_the_field_and_the_remedy(values, field, says):
    with pytest.raises(SpecError) as caught:
        validate(Outer, values, "x")
    assert caught.value.field == field
    assert says in str(caught.value)
    assert caught.value.remedy.endswith(".")


def test_a_configuration_is_frozen_and_takes_lists_for_tuples():
    made = validate(Outer, {"name": "a", "many": [{"depth": 2}]})
    assert made.many == (Inner(depth=2),)
    with pytest.raises(ValueError, match="frozen"):
        made.name = "b"


# -- the spec -----------------------------------------------------------------------------------------------------

SPECS = [
    {},
    {"seed": 3, "name": "two: words #1", "clients": 3, "model": {"name": "mlp", "params": {"widths": [8]}}},
    {
        "model": {"name": "mlp"},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "record": {"rounds": [0, 2]},
        "transport": "encrypted",
        "defenses": [{"kind": "model_update", "name": "gaussian-noise", "params": {"sigma": 0.5, "clip": 1.0}}],
        "withhold": ["sample_count"],
        "attacks": [{"name": "loss-threshold", "params": {"floor": 1e-9}, "adversaries": ["server+client/1"]}],
        "gates": {"membership_auc": 0.6},
    },
]  # fmt: skip


@pytest.mark.parametrize("values", SPECS, ids=["defaults", "small", "everything"])
def test_a_resolved_spec_loads_again_as_it_was(values, tmp_path):
    case = simulated_case(load_spec({"attacks": [{"name": "loss-threshold"}], **values}), known(11))
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(case.spec.public("c" * 64), sort_keys=False))
    again = load_spec(path)
    assert again == case.spec.model_copy(update={"seed": None})
    assert again.digest() == case.spec.digest()
    resolved = simulated_case(again, known(11))
    assert resolved.spec == again
    assert resolved.execution == case.execution


def test_a_written_spec_and_its_digest_leave_the_seed_out() -> None:
    public = load_spec({"seed": 987_654_321}).public("c" * 64)
    assert public["seed"] == {"commitment": "c" * 64}
    assert "987654321" not in json.dumps(public)
    base = load_spec({"seed": 1})
    assert base.digest() == load_spec({"seed": 2}).digest()
    for name, value in (("clients", 6), ("name", "other"), ("queries", 1), ("victims", 1)):
        assert load_spec({name: value}).digest() != base.digest()
    made = Spec()
    assert load_spec(made) is made


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"adversaries": ["aggregator"]}, "aggregator"),
        ({"protocol": {"name": "standalone"}}, "server"),
        ({"attacks": [{"name": "loss-threshold", "adversaries": ["aggregator"]}]}, "aggregator"),
        ({"adversaries": ["client/5"]}, "client/5"),
        ({"protocol": {"name": "fedavgg"}}, "Did you mean 'fedavg'"),
        ({"attacks": [{"name": "loss-treshold"}]}, "Did you mean 'loss-threshold'"),
        ({"withhold": ["model_parameters"]}, "sample_count"),
        ({"defenses": [{"kind": "logits", "name": "gaussian-noise", "params": {"sigma": 1}}]}, "never sent"),
        ({"victims": 6}, "5 clients"),
    ],
    ids=str,
)
def test_what_a_run_could_not_do_is_refused_before_it_starts(values, says):
    with pytest.raises(SpecError, match=says):
        simulated_case(load_spec({"attacks": [{"name": "loss-threshold"}], **values}), known(1))


# -- one grammar of names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_real_names_are_names(name: str) -> None:
    assert name_problem(name) == ""
    assert is_name(name)


@pytest.mark.parametrize("what", NO_NAME)
def test_no_name_is_refused_with_a_reason_of_one_line(what: str) -> None:
    problem = name_problem(NO_NAME[what])
    assert problem
    assert problem.isprintable()
    assert not is_name(NO_NAME[what])


@pytest.mark.parametrize("what", NO_TEXT)
def test_no_text_is_shown_on_one_line(what: str) -> None:
    text = NO_TEXT[what]
    assert text_problem(text)
    assert visible(text).isprintable()
    assert str(UsageError(text, text, text, text)).isprintable()
    assert str(IntegrityError([text])).isprintable()


@pytest.mark.parametrize("value", [None, 3, b"a", ["a"]])
def test_what_is_no_text_is_no_name(value: object) -> None:
    assert name_problem(value) == "is no text"
    assert not is_name(value)


@pytest.mark.thorough
def test_the_recorder_s_grammar_is_the_same_for_every_character() -> None:
    for number in range(sys.maxunicode + 1):
        name = f"a{chr(number)}b"
        assert is_name(name) == (name_problem(name) == ""), hex(number)


def test_the_recorder_s_grammar_is_the_same_for_every_character_of_small_number() -> None:
    for number in range(0x3000):
        for name in (f"a{chr(number)}b", f"{chr(number)}b", f"a{chr(number)}", chr(number)):
            assert is_name(name) == (name_problem(name) == ""), hex(number)
