"""Gaussian noise: what it draws, clips and claims; and how the wire applies it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fdaudit.errors import ProtocolError
from fdaudit.events import Gaussian, NoGuarantee
from fdaudit.rng import SecretStream, child
from fdaudit.transcript.wire import Released

from ..helpers.defence_cases import SECRET, defence, released
from ..helpers.defence_cases import on_wire as sent_on_wire
from ..helpers.protocol_cases import run


def gaussian(**params):
    return defence("gaussian-noise", **params)


def sent_of(made, tensors, path="m"):
    return released(made, tensors, path=path).tensors


def norm(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors.values()))


def message(seed=0, scale=1.0, n=4000):
    g = child(seed, "message")
    return {"w": torch.randn(n // 40, 40, generator=g) * scale, "b": torch.randn(7, generator=g) * scale}


# -- the noise ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.01, 1.0, 30.0])
def test_what_is_added_is_gaussian_of_the_stated_deviation(sigma):
    sent = {n: t.double() for n, t in message(n=20_000).items()}
    got = sent_of(gaussian(sigma=sigma), sent)
    residual = torch.cat([(got[n] - sent[n]).flatten() for n in sent]).numpy()
    assert kstest(residual / sigma, "norm").pvalue > 0.01
    assert abs(residual.mean()) < 4 * sigma / math.sqrt(len(residual))


def test_after_a_clip_what_is_added_is_gaussian_around_the_clipped_message():
    sent = {n: t.double() for n, t in message(n=20_000).items()}
    factor = 2.0 / norm(sent)
    got = sent_of(gaussian(sigma=0.5, clip=2.0), sent)
    residual = torch.cat([(got[n] - factor * sent[n]).flatten() for n in sent]).numpy()
    assert kstest(residual / 0.5, "norm").pvalue > 0.01


def test_noise_on_different_tensors_and_messages_is_independent():
    zeros = {"a": torch.zeros(5000), "b": torch.zeros(5000)}
    one, two = (sent_of(gaussian(sigma=1.0), zeros, path) for path in ("1", "2"))
    for x, y in ((one["a"], one["b"]), (one["a"], two["a"]), (one["a"], two["b"])):
        assert abs(np.corrcoef(x, y)[0, 1]) < 4 / math.sqrt(5000)


@pytest.mark.parametrize(
    "made", [gaussian(sigma=2.0), defence("laplace-noise", gamma=0.5)], ids=["gaussian", "laplace"]
)
def test_a_noised_count_is_rounded_not_cut(made):
    """Cut towards zero, counts would come out too small on average."""
    got = sent_of(made, {"n": torch.full((20_000,), 50)})["n"]
    assert got.dtype == torch.int64
    assert abs(float(got.double().mean()) - 50) < 4 * math.sqrt(8 / 20_000)


def test_noise_on_classes_of_a_narrow_type_does_not_wrap_into_other_classes():
    classes = {"values": torch.zeros(20_000, dtype=torch.uint8)}
    got = sent_of(gaussian(sigma=200.0), classes)["values"]
    assert got.dtype == torch.int64
    assert int(got.min()) < 0, "out of range, where receivers ignore it"


# -- the clip -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(scale=st.floats(1e-3, 1e6), clip=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_the_clip_bounds_the_norm_of_the_whole_message_and_keeps_its_direction(scale, clip, seed):
    sent = {n: t.double() for n, t in message(seed, scale, 80).items()}
    got = sent_of(gaussian(sigma=1e-12, clip=clip), sent)
    assert norm(got) <= clip * (1 + 1e-9) + 1e-9
    factor = min(1.0, clip / norm(sent))
    for name in sent:
        torch.testing.assert_close(got[name], sent[name] * factor, rtol=1e-9, atol=1e-9)


def test_the_clip_is_exact_before_single_precision_rounds():
    """Per-tensor rounding to float32 before the noise could exceed the clip; the sum must be rounded once."""
    sent = message(3, 1e3)
    got = sent_of(gaussian(sigma=1e-3, clip=1.0), sent)
    noise = SecretStream(SECRET, "m")
    factor = 1.0 / norm(sent)
    for name, tensor in sent.items():
        exact = tensor.double() * factor + torch.as_tensor(noise.normal(*tensor.shape)) * 1e-3
        assert torch.equal(got[name], exact.float())


def test_nothing_is_divided_by_the_norm_of_nothing():
    got = sent_of(gaussian(sigma=1e-9, clip=1.0), {"w": torch.zeros(5)})
    assert torch.isfinite(got["w"]).all()


def test_which_samples_a_message_is_about_is_neither_noised_nor_clipped_nor_covered():
    sent = {"index": torch.arange(100, 200), "values": torch.ones(100, 3), "z_max": torch.tensor(7.0)}
    got = sent_of(gaussian(sigma=5.0, clip=1.0), sent)
    assert torch.equal(got["index"], sent["index"])
    assert torch.equal(got["z_max"], sent["z_max"])
    tight = sent_of(gaussian(sigma=1e-12, clip=1.0), sent)
    assert norm({"values": tight["values"]}) == pytest.approx(1.0), "the clip is of what is noised"
    less = {n: sent[n] for n in ("index", "values")}
    for public, tensors, covered in ((False, less, False), (True, less, True), (True, sent, False)):
        made = gaussian(sigma=5.0, clip=1.0, public_index=public)
        event = released(made, tensors, "logits").event
        assert isinstance(event, Gaussian if covered else NoGuarantee)


# -- the claim ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(clip=st.floats(0.1, 10), one=st.integers(0, 50), two=st.integers(51, 99), scale=st.floats(0.01, 100))
def test_the_event_states_a_sensitivity_that_no_two_messages_exceed(clip, one, two, scale):
    made = gaussian(sigma=1e-12, clip=clip)
    a, b = (sent_of(made, {n: t.double() for n, t in message(s, scale, 80).items()}) for s in (one, two))
    event = released(made, message()).event
    assert event == Gaussian(
        sensitivity=2 * clip, scale=1e-12, unit="client", relation="replace-one", covers=("data", "messages")
    )
    assert norm({n: a[n] - b[n] for n in a}) <= event.sensitivity * (1 + 1e-9)


def test_the_sensitivity_is_reached_by_opposite_messages():
    made = gaussian(sigma=1e-12, clip=1.5)
    up = sent_of(made, {"w": torch.full((3,), 1e3, dtype=torch.float64)})["w"]
    down = sent_of(made, {"w": torch.full((3,), -1e3, dtype=torch.float64)})["w"]
    assert float((up - down).norm()) == pytest.approx(3.0)


def test_without_a_clip_nothing_is_claimed():
    event = released(gaussian(sigma=1e9), message()).event
    assert isinstance(event, NoGuarantee)
    assert "clip" in event.reason


def on_wire(folder, defences, tensors, messages=2):
    return sent_on_wire(folder, defences, tensors, "model_update", ("client/0", "server"), messages)


# -- on the wire --------------------------------------------------------------------------------------------------


def test_every_message_has_noise_of_its_own_whatever_order_its_tensors_come_in(tmp_path):
    zeros = {"b": torch.zeros(500), "a": torch.zeros(500)}
    one, two = on_wire(tmp_path / "1", [gaussian(sigma=1.0)], zeros)
    assert abs(np.corrcoef(one["a"], two["a"])[0, 1]) < 0.2
    again, _ = on_wire(tmp_path / "2", [gaussian(sigma=1.0)], dict(reversed(zeros.items())))
    assert all(torch.equal(one[n], again[n]) for n in zeros)


def test_two_defences_on_one_message_draw_apart(tmp_path):
    (got,) = on_wire(tmp_path, [gaussian(sigma=1.0), gaussian(sigma=1.0)], {"w": torch.zeros(20_000)}, 1)
    assert kstest(got["w"].numpy() / math.sqrt(2), "norm").pvalue > 0.01


def test_noise_comes_from_the_vaults_secret_never_from_the_seed(tmp_path):
    attached = {("model_update", "client"): [gaussian(sigma=1.0)]}
    plain = run(tmp_path / "plain", "fedavg", rounds=1)
    noised = run(tmp_path / "noised", "fedavg", rounds=1, defenses=attached)
    for clean, message in zip(plain.messages, noised.messages, strict=True):
        if message.kind == "model_update":
            stream = SecretStream(b"a secret of the auditor, not the seed", "defense", message.seq, 0)
            for name, sent in sorted(plain.tensors(clean).items()):
                drawn = torch.as_tensor(stream.normal(*sent.shape))
                torch.testing.assert_close(noised.tensors(message)[name], (sent.double() + drawn).float())
            stated = {
                "name": "gaussian-noise",
                "sigma": 1.0,
                "clip": None,
                "bound": None,
                "public_index": False,
            }
            assert message.defenses == (stated,)
            assert isinstance(message.event, NoGuarantee)


def test_a_defence_cannot_make_a_kind_that_is_not_in_the_vocabulary(tmp_path):
    class Renames:
        def describe(self):
            return {"name": "renames"}

        def release(self, kind, tensors, noise):
            return Released(kind="secrets", tensors=tensors, event=NoGuarantee(reason="a test"))

    with pytest.raises(ProtocolError, match="'secrets'"):
        on_wire(tmp_path, [Renames()], {"w": torch.zeros(3)})
