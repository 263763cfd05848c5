"""Mechanisms at their worst neighbours, each with a claim (ε, δ) from a closed form or from dp_accounting.

A case draws joint outputs of two queries or more, many at once: where the mechanism is a defence, one call of its
`release` treats a message of as many independent rows as there are draws. What a broken case draws is not what
it claims: it has half the noise, misses a clip, or adds one draw of noise to two queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm
from torch import Tensor

from fdaudit.accounting.charges import Drawn, converted
from fdaudit.accounting.costs import epsilon as priced
from fdaudit.events import (
    CorrelatedGaussian,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    SampledGaussian,
)
from fdaudit.metrics.claims.claim_test import choose, lower_bound
from fdaudit.rng import SecretStream, child_numpy
from fdaudit.transcript.encoding import readable

from ..helpers.defence_cases import defence

Floats = NDArray[np.float64]
SECRET = b"noise of the checked mechanisms"
FAMILY = 0.01
"""Probability of refuting any one of all the true claims."""
FAR = 1e6
"""An input that only a clip brings back."""


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """A claimed ε, and the lower bound on it that draws show."""

    claimed: float
    bound: float

    @property
    def refuted(self) -> bool:
        return self.bound > self.claimed


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism, its neighbours, and what is claimed of it.

    Attributes:
        draw: (side, n) -> joint outputs (n, k) on D (side 0) or D' (side 1).
        score: the logarithm of the likelihood ratio (n, k) -> (n,), or a projection.
        epsilon: what is claimed at `delta`.
        tight: ε(δ) of the joint output itself, by exact arithmetic; the claim, unless the claim is a bound.
    """

    draw: Callable[[int, int], Floats]
    score: Callable[[Floats], Floats]
    epsilon: float
    delta: float
    tight: float = field(default=math.nan)

    def check(self, draws: int, failure: float) -> Refutation:
        """Bound ε from below: one half of the draws on each side chooses a set of outputs, the other measures it."""
        p, q = (np.asarray(self.score(self.draw(side, draws)), dtype=np.float64) for side in (0, 1))
        assert p.shape == q.shape == (draws,)
        half = draws // 2
        found = choose(p[:half], q[:half], delta=self.delta, failure=failure)
        bound = lower_bound(found, p[half:], q[half:], delta=self.delta, failure=failure)
        return Refutation(claimed=self.epsilon, bound=bound)


# -- claims -------------------------------------------------------------------------------------------------------


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε(δ) of Gaussian noise, μ its sensitivity over its deviation: Balle & Wang 2018, Theorem 8."""

    def excess(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(norm.cdf(a) - math.exp(epsilon + log_ndtr(b)) - delta)

    return float(brentq(excess, 0, 200))


def claimed(events: list[Any], delta: float) -> float:
    """ε(δ) of independent releases of one kind, each for itself the worst case of its event."""
    if all(isinstance(e, Gaussian) for e in events):
        return gaussian_epsilon(
            math.sqrt(sum(e.count * (e.sensitivity / e.scale) ** 2 for e in events)), delta
        )
    made = None
    for e in events:
        if isinstance(e, Laplace):
            one = pld.from_laplace_mechanism(e.scale, e.sensitivity, value_discretization_interval=1e-4)
        elif isinstance(e, DiscreteLaplace):
            one = pld.from_discrete_laplace_mechanism(
                1 / e.scale, round(e.sensitivity), value_discretization_interval=1e-4
            )
        else:
            assert isinstance(e, DiscreteGaussian)
            one = pld.from_discrete_gaussian_mechanism(
                e.scale, round(e.sensitivity), value_discretization_interval=1e-4
            )
        made = one if made is None else made.compose(one)
    return float(made.get_epsilon_for_delta(delta))


def two_sided_epsilon(p: Floats, q: Floats, delta: float) -> float:
    """ε(δ) between two laws on few outcomes (k,): where Σ (p - e^ε q)+ is δ, the larger of both ways."""
    if not delta:
        return float(np.abs(np.log(p / q)).max())

    def excess(a: Floats, b: Floats, epsilon: float) -> float:
        return float(np.clip(a - math.exp(epsilon) * b, 0, None).sum()) - delta

    return max(float(brentq(lambda e, a=a, b=b: excess(a, b, e), 0, 50)) for a, b in ((p, q), (q, p)))


# -- defences -----------------------------------------------------------------------------------------------------


def released(made: Any, kind: str, values: Tensor, extra: dict[str, float], *path: str | int) -> Any:
    tensors = {"values": values.reshape(-1, 1, 1, 1)}
    tensors |= {k: torch.tensor(v, dtype=torch.float64) for k, v in extra.items()}
    return made.release(kind, tensors, SecretStream(SECRET, *path))


def defended(
    name: str,
    params: dict[str, Any],
    *,
    delta: float = 1e-3,
    kind: str = "logits",
    inputs: tuple[tuple[float, ...], tuple[float, ...]] = ((FAR, FAR), (-FAR, -FAR)),
    means: tuple[tuple[float, ...], tuple[float, ...]] = ((2.0, 2.0), (-2.0, -2.0)),
    extra: dict[str, float] | None = None,
    broken: dict[str, Any] | None = None,
    reused: bool = False,
    spread: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Case:
    """A defence on two messages, one value a draw in each.

    Args:
        name: of the defence.
        params: its settings, which the claim is made for.
        delta: δ of the claim.
        kind: of the messages.
        inputs: what is sent on D and on D', message by message.
        means: what is left of it before the noise, in the units of the values.
        extra: helper tensors beside the values.
        broken: settings that the draws are made with in place of the claim's.
        reused: both messages have the same noise.
        spread: settings of the whole message that stand for its n rows, √n of them for each row's one; `shares` n.
        dtype: that values are sent in.
    """
    helpers = extra or {}
    one = torch.ones(1, dtype=dtype)
    events = [released(defence(name, **params), kind, x * one, helpers, "claim").event for x in inputs[0]]

    def draw(side: int, n: int) -> Floats:
        used = {**params, **(broken or {})}
        used |= {s: n if s == "shares" else used[s] * math.sqrt(n) for s in spread}
        made = defence(name, **used)
        columns = []
        for query, x in enumerate(inputs[side]):
            path = (name, side, 0 if reused else query)
            sent = readable(released(made, kind, torch.full((n,), x, dtype=dtype), helpers, *path).tensors)
            columns.append(sent["values"].double().numpy().reshape(n))
        return np.stack(columns, 1)

    first, second = (np.asarray(m) for m in means)

    def score(y: Floats) -> Floats:
        if reused:
            return np.asarray(y[:, 0] - y[:, 1])
        if isinstance(events[0], (Laplace, DiscreteLaplace)):
            return np.asarray((np.abs(y - second) - np.abs(y - first)).sum(1))
        return np.asarray((y * (first - second)).sum(1))

    epsilon = claimed(events, delta)
    return Case(draw=draw, score=score, epsilon=epsilon, delta=delta, tight=epsilon)


# -- mechanisms that are none of the defences' ----------------------------------------------------------------------


def noisy_max(noise: str, scale: float, delta: float, factor: float = 1.0) -> Case:
    """Two queries to two classes; one of five voters changes its vote: (3, 2) becomes (2, 3).

    Claims: Gaussian noise on counts of ℓ2 sensitivity √2 (Papernot 2018, Proposition 8), or 2γ a query for Laplace
    noise of scale 1/γ (Papernot 2017, section 3.1). What of that the label gives away follows from the law of the
    difference of two draws.
    """

    def draw(side: int, n: int) -> Floats:
        rng = child_numpy(0, "noisy-max", noise, side)
        drawn = rng.normal(size=(n, 2, 2)) if noise == "gaussian" else rng.laplace(size=(n, 2, 2))
        counts = np.array([[3, 2], [2, 3]][side]) + scale * factor * drawn
        return counts.argmax(2).astype(np.float64)

    if noise == "gaussian":
        wins, epsilon = float(norm.cdf(1 / (math.sqrt(2) * scale))), gaussian_epsilon(2 / scale, delta)
    else:
        wins, epsilon = 1 - 0.5 * math.exp(-1 / scale) * (1 + 0.5 / scale), 4 / scale
    law = np.array([wins**2, 2 * wins * (1 - wins), (1 - wins) ** 2])
    exact = two_sided_epsilon(law, law[::-1], delta)
    return Case(draw=draw, score=lambda y: -y.sum(1), epsilon=epsilon, delta=delta, tight=exact)


def sampled_gaussian(rate: float, sigma: float, steps: int, delta: float, factor: float = 1.0) -> Case:
    """Noised sums over Poisson samples, several steps; D has one record more, of length 1."""

    def draw(side: int, n: int) -> Floats:
        rng = child_numpy(0, "sampled", side)
        taken = rng.random((n, steps)) < rate if side == 0 else np.zeros((n, steps))
        return np.asarray(taken + sigma * factor * rng.normal(size=(n, steps)))

    one = pld.from_gaussian_mechanism(sigma, 1.0, value_discretization_interval=1e-4, sampling_prob=rate)
    epsilon = float(one.self_compose(steps).get_epsilon_for_delta(delta))

    def score(y: Floats) -> Floats:
        return np.asarray(np.log1p(rate * np.expm1((y - 0.5) / sigma**2)).sum(1))

    return Case(draw=draw, score=score, epsilon=epsilon, delta=delta, tight=epsilon)


def drawn_gaussian(
    sigma: float, steps: int, delta: float, factor: float = 1.0, *, shown: bool = False
) -> Case:
    """Noised sums over two of four clients, drawn without replacement; one client's value goes from 1 to -1.

    The others have the value 1. On D every sum is 2; on D' it is 0 if the client was drawn, in half of all steps.

    Args:
        sigma: of the noise.
        steps: number of sums.
        delta: δ of the claim.
        factor: noise over what the claim is for.
        shown: whether the view sees who was drawn.
    """

    def draw(side: int, n: int) -> Floats:
        rng = child_numpy(0, "drawn", side)
        clients = np.ones((n, steps, 4))
        clients[:, :, 0] = (1.0, -1.0)[side]
        taken = rng.random((n, steps, 4)).argsort(2) < 2
        sums = (clients * taken).sum(2) + sigma * factor * rng.normal(size=(n, steps))
        return np.concatenate([sums, taken[:, :, 0]], 1)

    one = Gaussian(sensitivity=2.0, scale=sigma, unit="client", relation="replace-one", covers=("data",))
    pair = pld.from_gaussian_mechanism(sigma / 2, 1.0, value_discretization_interval=1e-4, sampling_prob=0.5)

    def score(y: Floats) -> Floats:
        sums, taken = y[:, :steps], y[:, steps:]
        against = ((sums - 2) ** 2 - sums**2) / (2 * sigma**2)  # log of N(0) over N(2)
        ratio = taken * against if shown else np.log1p(0.5 * np.expm1(against))
        return np.asarray(-ratio.sum(1))

    return Case(
        draw=draw,
        score=score,
        epsilon=priced({Drawn(gaussian=one, clients=4, drawn=2, steps=steps): 1}, delta).value,
        delta=delta,
        tight=float(pair.self_compose(steps).get_epsilon_for_delta(delta)),
    )


def correlated_gaussian(scale: float, separation: int, delta: float, factor: float = 1.0) -> Case:
    """Sums of four steps under noise of three bands; a record takes part twice, or never."""
    bands, steps = (1.0, 0.8, 0.6), 4
    event = CorrelatedGaussian(
        sensitivity=1.0,
        scale=scale,
        bands=bands,
        steps=steps,
        separation=separation,
        participations=2,
        unit="record",
        relation="add-or-remove",
        covers=("data",),
    )
    made = converted(event, "record", "add-or-remove")
    assert isinstance(made, Gaussian)
    C = sum(c * np.eye(steps, k=-offset) for offset, c in enumerate(bands))
    moved = np.zeros(steps)
    moved[[0, separation]] = 1.0

    def draw(side: int, n: int) -> Floats:
        drawn = child_numpy(0, "correlated", side).normal(size=(n, steps))
        return np.asarray((moved if side == 0 else 0.0) + scale * factor * np.linalg.solve(C, drawn.T).T)

    return Case(
        draw=draw,
        score=lambda y: np.asarray(y @ (C.T @ C) @ moved),
        epsilon=priced({made: 1}, delta).value,
        delta=delta,
        tight=gaussian_epsilon(float(np.linalg.norm(C @ moved)) / scale, delta),
    )


def by_coins(sigma: float, steps: int, delta: float) -> float:
    """What the draw would cost if coins hid its clients."""
    coins = SampledGaussian(
        sensitivity=1.0,
        scale=sigma,
        sample_rate=0.5,
        unit="client",
        relation="replace-one",
        covers=("data",),
    )
    return priced({coins: steps}, delta).value


# -- the cases ----------------------------------------------------------------------------------------------------

_SHARED = ((0.5, 0.5), (-0.5, -0.5))
_AVERAGE = {"inputs": _SHARED, "means": _SHARED, "extra": {"client_share": 0.25, "client_bound": 2.0}}
_OPPOSED = ((FAR, -FAR), (-FAR, FAR))
_MISSED = ((6.0, 6.0), (-6.0, -6.0))
"""Inputs that a clip would change."""
_DEFENDED: dict[str, dict[str, Any]] = {
    "laplace": {"name": "laplace-noise", "params": {"gamma": 0.4, "clip": 2.0}},
    "laplace, of an average": {
        "name": "laplace-noise",
        "params": {"gamma": 1.2, "clip": 2.0},
        **_AVERAGE,
    },
    "gaussian, each value": {"name": "gaussian-noise", "params": {"sigma": 5.0, "bound": 2.0}},
    "gaussian, the whole message": {
        "name": "gaussian-noise",
        "params": {"sigma": 5.0, "clip": 2.0},
        "spread": ("clip",),
    },
    "gaussian, of an average": {
        "name": "gaussian-noise",
        "params": {"sigma": 1.3, "bound": 2.0},
        **_AVERAGE,
    },
    "dp-fedavg": {
        "name": "dp-fedavg",
        "params": {"clip": 2.0, "sigma": 2.5},
        "kind": "model_update",
        "spread": ("clip", "shares"),
    },
    "sanitized-gradients": {
        "name": "sanitized-gradients",
        "params": {"clip": 2.0, "sigma": 2.5},
        "kind": "sample_gradients",
    },
    "discrete laplace": {"name": "discrete-laplace", "params": {"gamma": 0.4, "clip": 2.0, "levels": 6}},
    "discrete gaussian": {"name": "discrete-gaussian", "params": {"sigma": 5.0, "clip": 2.0, "levels": 3}},
    "discrete gaussian, of an average": {
        "name": "discrete-gaussian",
        "params": {"sigma": 3.0, "clip": 2.0, "levels": 4},
        # Two codes apart, though the values are hardly more than one.
        "inputs": ((0.5, 0.5), (-0.51, -0.51)),
        "means": ((1.0, 1.0), (-1.0, -1.0)),
        "extra": {"client_share": 0.26, "client_bound": 2.0},
    },
}
_BROKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "laplace, half the noise": ("laplace", {"broken": {"gamma": 0.8}}),
    # Of sums in double precision the last bits tell what the noise was added to (Mironov 2012).
    "laplace, the low bits of double precision": ("laplace, of an average", {"dtype": torch.float64}),
    "gaussian, half the noise": ("gaussian, each value", {"broken": {"sigma": 2.5}}),
    "gaussian, a missed clip": ("gaussian, each value", {"inputs": _MISSED, "broken": {"bound": None}}),
    "laplace, noise reused": ("laplace", {"inputs": _OPPOSED, "reused": True}),
    "gaussian, noise reused": ("gaussian, each value", {"inputs": _OPPOSED, "reused": True}),
    "sanitized-gradients, a missed clip": (
        "sanitized-gradients",
        {"inputs": _MISSED, "broken": {"clip": 6.0, "sigma": 2.5 / 3}},
    ),
    "sanitized-gradients, half the noise": ("sanitized-gradients", {"broken": {"sigma": 1.25}}),
    "discrete gaussian, half the noise": ("discrete gaussian", {"broken": {"sigma": 2.5}}),
    "discrete laplace, noise reused": ("discrete laplace", {"inputs": _OPPOSED, "reused": True}),
}
"""By name: the sound case, and what is changed in it."""


def cases() -> dict[str, Callable[[], Case]]:
    """Every mechanism as it should be."""
    return {
        **{name: partial(defended, **case) for name, case in _DEFENDED.items()},
        "noisy max, gaussian": lambda: noisy_max("gaussian", 2.0, 1e-3),
        "noisy max, laplace": lambda: noisy_max("laplace", 2.0, 0.0),
        "sampled gaussian": lambda: sampled_gaussian(0.3, 1.0, 4, 1e-3),
        "drawn gaussian": lambda: drawn_gaussian(2.5, 4, 1e-3),
        "correlated gaussian": lambda: correlated_gaussian(4.0, 1, 1e-3),
    }


def broken() -> dict[str, Callable[[], Case]]:
    """Mechanisms that do not do what their claim is for."""
    return {
        **{
            name: partial(defended, **{**_DEFENDED[sound], **more}) for name, (sound, more) in _BROKEN.items()
        },
        "noisy max, a quarter of the noise": lambda: noisy_max("laplace", 2.0, 0.0, 0.25),
        "sampled gaussian, half the noise": lambda: sampled_gaussian(0.3, 1.0, 4, 1e-3, 0.5),
        "drawn gaussian, half the noise": lambda: drawn_gaussian(2.5, 4, 1e-3, 0.5),
        "drawn gaussian, who was drawn is seen": lambda: drawn_gaussian(2.5, 4, 1e-3, shown=True),
        "drawn gaussian, priced as coins": lambda: replace(
            drawn_gaussian(2.5, 4, 1e-3), epsilon=by_coins(2.5, 4, 1e-3)
        ),
        "correlated gaussian, half the noise": lambda: correlated_gaussian(4.0, 1, 1e-3, 0.5),
        "correlated gaussian, steps taken for orthogonal": lambda: replace(
            correlated_gaussian(4.0, 1, 1e-3), epsilon=gaussian_epsilon(math.sqrt(2 * 2.0) / 4.0, 1e-3)
        ),
        "sampled gaussian, everybody sampled": lambda: replace(
            sampled_gaussian(1.0, 1.0, 4, 1e-3), epsilon=sampled_gaussian(0.3, 1.0, 4, 1e-3).epsilon
        ),
    }
