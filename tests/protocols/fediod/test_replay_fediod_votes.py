"""Acceptance: with votes, the record alone gives back the counts, what clients were told, and the published student.

The reader is that of `test_replay_fediod`, with labels in place of logits: JSON, safetensors and NumPy, nothing of
fdaudit or torch. A record with one message taken away, or one value changed, no longer gives them back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ...helpers.record_reader import Arrays, BrokenRecordError, read, samples
from ...helpers.replays import breaks_without_each_message, overwrite
from .test_replay_fediod import Student, log_softmax, with_initial

CLIENTS = 3
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "steps_per_round": 3,
    "samples": 6,
    "latent": 3,
    "generator_width": 2,
    "discriminator_width": 2,
    "local_steps": 20,
    "batch_size": 8,
    "adam_lr": 0.01,
    "gan": 0.7,
    "mimic": 0.4,
    "student_steps": 1,
    "replay": 0,
    "outputs": "votes",
    "weights": "uniform",
    "shares": "uniform",
}
GNMAX = {"name": "gnmax", "params": {"sigma": 1.0, "public_index": True}}
CONFIDENT = {
    "name": "confident-gnmax",
    "params": {"threshold": 2.5, "sigma_threshold": 1.0, "sigma": 0.5, "public_index": True},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "counts": ({}, None),
    "gnmax": ({}, GNMAX),
    "some-dropped": ({}, CONFIDENT),
    "one-asked": ({"gradients_from": "one"}, GNMAX),
    "no-gradients": ({"gan": 0.0}, None),
}


# -- the reader ---------------------------------------------------------------------------------------------------


def replay(directory: Path, initial: Path, settings: dict[str, Any], defended: bool) -> int:
    """Checks a whole run; returns how many samples the student was told a label of.

    Raises:
        BrokenRecordError: a message is missing, unexpected, or not what the messages before it make it.
    """
    record, everybody = read(directory), [f"client/{k}" for k in range(CLIENTS)]
    steps, rounds = settings["steps_per_round"], settings["rounds"]
    by_step: dict[tuple[int, int], list[tuple[dict[str, Any], Arrays]]] = {}
    *dialogue, (last, published) = record
    for message, tensors in dialogue:
        by_step.setdefault((message["round"], message["step"]), []).append((message, tensors))
    if sorted(by_step) != [(r, s) for r in range(1, rounds) for s in range(steps)]:
        raise BrokenRecordError("a step is missing")
    student, told = Student(load_file(initial)), 0
    for t, (_, said) in enumerate(sorted(by_step.items())):
        order = [(m["sender"], m["kind"], *m["receivers"]) for m, _ in said]
        made = "hard_labels" if defended else "vote_counts"
        opening = [
            ("server", "generated_samples", *everybody),
            *((k, "hard_labels", "aggregator") for k in everybody),
            ("aggregator", made, "server"),
        ]
        asked = [receivers[0] for _, kind, *receivers in order if kind == "logit_cotangents"]
        answers = [
            *(("server", "logit_cotangents", k) for k in asked),
            *((k, "sample_gradients", "server") for k in asked),
        ]
        one = settings.get("gradients_from") == "one"
        wanted = len(asked) == 1 if one else asked == (everybody if settings["gan"] else [])
        if order != [*opening, *answers] or not wanted:
            raise BrokenRecordError(f"step {t}: {order}")
        payloads = [tensors for _, tensors in said]
        x, ballots, labels = payloads[0]["samples"], payloads[1 : 1 + CLIENTS], payloads[1 + CLIENTS]
        targets = read_labels(x, ballots, labels, defended)
        for cotangents in payloads[2 + CLIENTS : 2 + CLIENTS + len(asked)]:
            if set(cotangents) != {"gan_weight"}:
                raise BrokenRecordError(f"step {t}: cotangents of logits that nobody sent")
            if not np.isclose(cotangents["gan_weight"], settings["gan"] / CLIENTS, rtol=1e-6):
                raise BrokenRecordError(f"step {t}: another weight of L_gan")
        rows = targets.sum(1) > 0
        if rows.any():
            z = student(x[rows])
            lr = settings["adam_lr"] * (1 + np.cos(np.pi * t / ((rounds - 1) * steps))) / 2
            student.step((np.exp(log_softmax(z)) - targets[rows]) / rows.sum(), lr)
        told += int(rows.sum())
    if last["kind"] != "model_parameters" or last["receivers"] != [*everybody, "world"]:
        raise BrokenRecordError("nothing was published")
    for name, values in student.w.items():
        if not np.allclose(published[name], values, rtol=1e-3, atol=1e-5):
            raise BrokenRecordError(f"{name} differs by {np.abs(published[name] - values).max()}")
    return told


def read_labels(
    x: NDArray[Any], ballots: list[Arrays], labels: Arrays, defended: bool
) -> NDArray[np.float64]:
    """Shares of classes (n, C) that the student learns; noughts where it is told nothing."""
    counts = np.zeros((len(x), 10))
    for ballot in ballots:
        if "index" in ballot or len(ballot["values"]) != len(x):
            raise BrokenRecordError("a ballot is not of all samples")
        counts[np.arange(len(x)), ballot["values"]] += 1
    if not defended:
        if "index" in labels or not np.array_equal(labels["counts"], counts):
            raise BrokenRecordError("the votes were counted otherwise")
        return counts / counts.sum(1, keepdims=True)
    targets = np.zeros_like(counts)
    targets[samples(labels), labels["values"]] = 1
    return targets


# -- the runs -----------------------------------------------------------------------------------------------------


def recorded(directory: Path, name: str) -> tuple[Path, dict[str, Any], bool]:
    """A finished run beside its server's initial parameters."""
    change, defence = CASES[name]
    settings = {**SETTINGS, **change}
    at = {"kind": "vote_counts", "sender": "aggregator"}
    defenses = [] if defence is None else [{**at, **defence}]
    return with_initial(directory, settings, defenses=defenses), settings, defence is not None


def checked(run: Path, settings: dict[str, Any], defended: bool) -> int:
    return replay(run / "transcript", run / "initial.safetensors", settings, defended)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_counts_and_student_follow_from_the_record(name: str, tmp_path: Path) -> None:
    told = checked(*recorded(tmp_path / "run", name))
    samples = 2 * SETTINGS["steps_per_round"] * SETTINGS["samples"]
    assert 0 < told < samples if name == "some-dropped" else told == samples


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["counts", "one-asked"])
def test_taking_any_one_message_away_breaks_it(name: str, tmp_path: Path) -> None:
    run, settings, defended = recorded(tmp_path / "run", name)
    breaks_without_each_message(run / "transcript", lambda: checked(run, settings, defended))


@pytest.mark.parametrize(
    ("kind", "sender"), [("hard_labels", f"client/{CLIENTS - 1}"), ("vote_counts", "aggregator")]
)
def test_every_vote_counts(kind: str, sender: str, tmp_path: Path) -> None:
    run, settings, defended = recorded(tmp_path / "run", "counts")
    *_, (message, tensors) = (  # the last, so that no later payload is the same
        f for f in read(run / "transcript") if (f[0]["kind"], f[0]["sender"]) == (kind, sender)
    )
    (name,) = [n for n in tensors if n != "index"]
    tensors[name] = tensors[name].copy()
    tensors[name].flat[0] = (tensors[name].flat[0] + 1) % 10
    overwrite(run / "transcript", message, tensors)
    with pytest.raises(BrokenRecordError, match="counted otherwise"):
        checked(run, settings, defended)


@pytest.mark.thorough
@pytest.mark.parametrize("change", [{"gan": 0.71}, {"adam_lr": 0.011}, {"gradients_from": "one"}])
def test_the_reader_tells_other_settings_from_those_that_were_used(
    change: dict[str, Any], tmp_path: Path
) -> None:
    run, settings, defended = recorded(tmp_path / "run", "gnmax")
    with pytest.raises(BrokenRecordError):
        checked(run, {**settings, **change}, defended)
