"""Acceptance: the record alone gives back what FedIOD's server told its clients, and the student that it published.

The reader knows the settings, the public initial parameters and the messages, and nothing of fdaudit or torch: losses,
their gradients, the student's network and Adam are worked out once more in NumPy, in double precision. A record
with one message taken away no longer gives them back.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ...helpers.record_reader import Arrays, BrokenRecordError, Record, read
from ...helpers.replays import breaks_without_each_message, overwrite, read_alone, states_its_settings
from ...helpers.run_cases import finished, known

# -- the reader: json, safetensors and NumPy --------------------------------------------------------------------


def log_softmax(z: NDArray[Any]) -> NDArray[Any]:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def through_softmax(q: NDArray[Any], by_q: NDArray[Any]) -> NDArray[Any]:
    """∂/∂z of something whose gradient with respect to q = softmax(z) is `by_q`."""
    return q * (by_q - (q * by_q).sum(-1, keepdims=True))


class Student:
    """A perceptron with one hidden layer, and Adam."""

    def __init__(self, initial: Arrays) -> None:
        self.w = {n: t.astype(np.float64) for n, t in initial.items()}
        self.m = {n: np.zeros_like(w) for n, w in self.w.items()}
        self.v = {n: np.zeros_like(w) for n, w in self.w.items()}
        self.steps = 0

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        self._x, w = x.reshape(len(x), -1).astype(np.float64), self.w
        self._inner = self._x @ w["extractor.1.weight"].T + w["extractor.1.bias"]
        return np.maximum(self._inner, 0) @ w["head.0.weight"].T + w["head.0.bias"]

    def step(self, by_output: NDArray[Any], lr: float) -> None:
        """Down the gradient whose value at the last output is `by_output`."""
        by_inner = (by_output @ self.w["head.0.weight"]) * (self._inner > 0)
        gradients = {
            "head.0.weight": by_output.T @ np.maximum(self._inner, 0),
            "head.0.bias": by_output.sum(0),
            "extractor.1.weight": by_inner.T @ self._x,
            "extractor.1.bias": by_inner.sum(0),
        }
        self.steps += 1
        for n, g in gradients.items():
            self.m[n] = 0.9 * self.m[n] + 0.1 * g
            self.v[n] = 0.999 * self.v[n] + 0.001 * g**2
            m, v = self.m[n] / (1 - 0.9**self.steps), self.v[n] / (1 - 0.999**self.steps)
            self.w[n] = self.w[n] - lr * m / (np.sqrt(v) + 1e-8)


def flat(answers: NDArray[Any]) -> NDArray[Any]:
    return answers


def replay(
    record: Record,
    student: Any,
    settings: dict[str, Any],
    clients: int,
    without: list[str],
    *,
    rows_of: Callable[[NDArray[Any]], NDArray[Any]] = flat,
    atol: float = 1e-5,
) -> int:
    """Checks a whole run against Gong 2023, Algorithm 1; returns how many cotangents were compared.

    Args:
        record: the messages.
        student: the server's, with its public initial parameters.
        settings: the protocol's.
        clients: how many there are.
        without: kinds that were withheld.
        rows_of: makes answers (..., n, C, ...) to rows (..., rows, C), each of which counts as a sample.
        atol: how far cotangents may lie from their formula.

    Raises:
        BrokenRecordError: a message is missing, unexpected, or not what the messages before it make it.
    """
    everybody = [f"client/{k}" for k in range(clients)]
    by_step: dict[tuple[int, int], dict[str, dict[str, Arrays]]] = defaultdict(lambda: defaultdict(dict))
    for message, tensors in record:
        place = by_step[message["round"], message["step"]][message["kind"]]
        for party in message["receivers"] if message["sender"] == "server" else [message["sender"]]:
            if party in place:
                raise BrokenRecordError(f"{message['kind']} of {party} twice")
            place[party] = tensors
    needed = settings["weights"] != "uniform" or settings["shares"] != "uniform"
    counts = expect(
        by_step.pop((0, 0), {}), "class_counts", everybody, needed and "class_counts" not in without
    )
    n_k = np.stack([counts[k]["counts"] if counts else np.ones(10) for k in everybody]).astype(np.float64)
    N, rounds = settings["steps_per_round"], settings["rounds"]
    if sorted(by_step) != [(r, s) for r in range(1, rounds) for s in range(N)]:
        raise BrokenRecordError("a step is missing")
    compared = 0
    for t, (_, said) in enumerate(sorted(by_step.items())):
        x = expect(said, "generated_samples", everybody)[everybody[0]]["samples"]
        z = np.stack([a["values"] for a in expect(said, "logits", everybody).values()]).astype(np.float64)
        scored = settings["weights"] == "eq8" and "discriminator_scores" not in without
        scores = expect(said, "discriminator_scores", everybody, scored)
        expect(said, "sample_gradients", everybody)
        r = np.stack([scores[k]["values"] if scores else np.ones(len(x)) for k in everybody])
        rows = rows_of(z)
        each = r.repeat(rows.shape[-2] // len(x), axis=1)
        made, by_student = cotangents(rows, rows_of(student(x)), n_k, each, settings)
        for k, told in enumerate(expect(said, "logit_cotangents", everybody).values()):
            share = pi(n_k, settings)[k]
            stated = rows_of(told["values"])
            if not np.allclose(stated, made[k], rtol=1e-3, atol=atol):
                raise BrokenRecordError(f"step {t}, client {k}: off by {np.abs(stated - made[k]).max()}")
            if settings["gan_total"] == "sum":
                share = 1
            if not np.isclose(told["gan_weight"], settings["gan"] * share, rtol=1e-5):
                raise BrokenRecordError(f"step {t}, client {k}: another weight of L_gan")
            compared += 1
        student.step(by_student, settings["adam_lr"] * (1 + np.cos(np.pi * t / ((rounds - 1) * N))) / 2)
    released = expect(said, "model_parameters", [*everybody, "world"])["world"]
    # With a temperature or many rows, one rounding to float32 of the gradient (6e-8 of its largest entry) moves the
    # student by up to 1e-4: Adam divides small gradients by their own size. A wrong rule moves it by whole steps.
    rounding = 1e-5 if settings["temperature"] is None and rows_of is flat else 3e-4
    for name, values in student.w.items():
        if not np.allclose(released[name], values, rtol=1e-3, atol=rounding):
            raise BrokenRecordError(f"{name} differs by {np.abs(released[name] - values).max()}")
    return compared


def expect(
    said: dict[str, dict[str, Arrays]], kind: str, parties: list[str], wanted: bool = True
) -> dict[str, Arrays]:
    """The messages of one kind by party, which must be those of `parties`, or none where it is not sent."""
    found = said.get(kind, {})
    if sorted(found) != (sorted(parties) if wanted else []):
        raise BrokenRecordError(f"{kind} of {sorted(found)}")
    return {k: found[k] for k in parties} if wanted else {}


def pi(n_k: NDArray[Any], settings: dict[str, Any]) -> NDArray[Any]:
    n = n_k.sum(1) if settings["shares"] == "samples" else np.ones(len(n_k))
    return n / n.sum()


def cotangents(
    z: NDArray[Any], s: NDArray[Any], n_k: NDArray[Any], r: NDArray[Any], settings: dict[str, Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """∂L/∂z_k (K, n, C) of Eq. 3, 5 and 10 as the generator has them, and ∂L_mimic/∂ẑ (n, C), by their formulas."""
    n, share = len(s), pi(n_k, settings)[:, None, None]
    log_q = log_softmax(z)
    q = np.exp(log_q)
    mixed = (share * q).sum(0)
    by_conf = share / n * through_softmax(q, -(log_q + 1))  # H = -Σ q log q
    by_jsd = share / n * through_softmax(q, np.broadcast_to(-(np.log(mixed) + 1), q.shape)) - by_conf
    weights = {"eq8": n_k[:, None, :] * r[:, :, None], "samples": np.broadcast_to(share, z.shape)}.get(
        settings["weights"], np.ones_like(z)
    )
    total = weights.sum(0)
    weights = np.where(total > 0, weights / np.where(total > 0, total, 1), 1 / len(z))
    target, tau = (weights * z).sum(0), settings["temperature"]
    if tau is None:
        by_student = 2 * (s - target) / n
        by_target = -by_student
    else:
        log_p, log_s = log_softmax(target / tau), log_softmax(s / tau)
        p, by_student = np.exp(log_p), tau * (np.exp(log_s) - np.exp(log_p)) / n
        by_target = tau / n * through_softmax(p, log_p + 1 - log_s)
    made = settings["conf"] * by_conf - settings["unique"] * by_jsd - settings["mimic"] * weights * by_target
    return made, by_student


# -- the runs -----------------------------------------------------------------------------------------------------

CLIENTS = 3
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "steps_per_round": 2,
    "samples": 4,
    "latent": 3,
    "generator_width": 2,
    "discriminator_width": 2,
    "local_steps": 20,
    "batch_size": 8,
    "adam_lr": 0.01,
    "gan": 0.7,
    "gan_total": "mean",
    "conf": 0.6,
    "unique": 0.5,
    "mimic": 0.4,
    "student_steps": 1,
    "replay": 0,
    "weights": "eq8",
    "shares": "samples",
    "temperature": None,
}
CASES = {
    "paper": {},
    "summed": {"gan_total": "sum"},
    "kl": {"temperature": 2.0, "shares": "uniform"},
    "by-records": {"weights": "samples"},
    "plain": {"weights": "uniform", "shares": "uniform"},
    "terms-left-out": {"conf": 0.0, "unique": 0.0, "gan": 0.0},
}


def with_initial(directory: Path, settings: dict[str, Any], **changes: Any) -> Path:
    """A finished run beside its server's initial parameters."""
    protocol = {"name": "fediod", "params": settings}
    spec = {
        "clients": CLIENTS,
        "dataset__limit": 200,
        "splits__candidates": 1,
        "protocol": protocol,
        **changes,
    }
    run = finished(directory, **spec)
    initial = simulated_case(load_spec(small_spec(**spec)), known(7)).initial()
    save_file({n: t.numpy() for n, t in initial.items()}, run / "initial.safetensors")
    return run


def recorded(
    directory: Path, change: dict[str, Any], withhold: tuple[str, ...] = ()
) -> tuple[Path, dict[str, Any]]:
    settings = {**SETTINGS, **change}
    partition = {"name": "dirichlet", "alpha": 0.5}  # unequal counts: weights matter
    return with_initial(directory, settings, partition=partition, withhold=list(withhold)), settings


def checked(run: Path, settings: dict[str, Any], without: tuple[str, ...] = ()) -> int:
    student = Student(load_file(run / "initial.safetensors"))
    return replay(read(run / "transcript"), student, settings, CLIENTS, list(without))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_what_the_server_told_and_published_follows_from_the_record(name: str, tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", CASES[name])
    assert checked(run, settings) == 4 * CLIENTS
    assert states_its_settings(run, settings)


@pytest.mark.parametrize(
    "kinds", [("class_counts",), ("discriminator_scores",), ("class_counts", "discriminator_scores")]
)
def test_without_counts_or_scores_eq_8_goes_without_that_factor(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    run, settings = recorded(tmp_path / "run", {}, kinds)
    assert checked(run, settings, kinds) == 4 * CLIENTS


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["paper", "plain"])
def test_taking_any_one_message_away_breaks_it(name: str, tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", CASES[name])
    count = breaks_without_each_message(run / "transcript", lambda: checked(run, settings))
    assert count >= 4 * (1 + 3 * CLIENTS) + 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"conf": 0.61},
        {"unique": 0.51},
        {"mimic": 0.41},
        {"gan": 0.71},
        {"gan_total": "sum"},
        {"weights": "samples"},
        {"shares": "uniform"},
        {"temperature": 3.0},
        {"adam_lr": 0.011},
    ],
    ids=lambda c: "-".join(c),
)
def test_the_reader_tells_other_settings_from_those_that_were_used(
    change: dict[str, Any], tmp_path: Path
) -> None:
    """Were the comparison too lenient, other settings would pass as well."""
    run, settings = recorded(tmp_path / "run", {})
    with pytest.raises(BrokenRecordError):
        checked(run, {**settings, **change})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["logits", "discriminator_scores", "class_counts", "generated_samples"])
def test_every_value_of_what_the_server_was_sent_or_sent_counts(kind: str, tmp_path: Path) -> None:
    """Another number in one message of the first step, and the record no longer fits."""
    run, settings = recorded(tmp_path / "run", {})
    message, tensors = next(found for found in read(run / "transcript") if found[0]["kind"] == kind)
    (name,) = [n for n in tensors if n != "index"]
    tensors[name] = tensors[name] + np.ones((), tensors[name].dtype)
    overwrite(run / "transcript", message, tensors)
    with pytest.raises(BrokenRecordError):
        checked(run, settings)


def test_the_reader_uses_nothing_of_fdaudit_or_torch(tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", {})
    imports = (
        "from collections import defaultdict\nimport numpy as np\nfrom safetensors.numpy import load_file"
    )
    call = "replay(read(Path(a[1])), Student(load_file(a[2])), json.loads(a[3]), int(a[4]), [])"
    where = (str(run / "transcript"), str(run / "initial.safetensors"))
    compared = read_alone(__file__, imports, call, tmp_path, *where, json.dumps(settings), str(CLIENTS))
    assert compared == str(4 * CLIENTS)
