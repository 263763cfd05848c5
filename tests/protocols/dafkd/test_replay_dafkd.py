"""Acceptance: the record alone gives back DaFKD's averages, its weights α̂ and the model distilled with them.

The reader knows the settings, the messages and the coins that the server tossed for its pseudo-samples, and nothing of
fdaudit or torch: the generator, the networks, Eq. 7 and distillation by SGD are worked out once more in NumPy, in
double precision. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fdaudit.rng import child

from ...helpers.record_reader import Arrays, BrokenRecordError, read
from ...helpers.replays import (
    breaks_without_each_message,
    overwrite,
    read_alone,
    states_its_settings,
    take_away,
)
from ...helpers.run_cases import finished, known

# -- the reader: json, safetensors and NumPy --------------------------------------------------------------------


def softmax(z: NDArray[Any]) -> NDArray[Any]:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(z: NDArray[Any]) -> NDArray[Any]:
    return 1 / (1 + np.exp(-z))


def normed(h: NDArray[Any], g: Arrays, layer: str) -> NDArray[Any]:
    """LayerNorm, then LeakyReLU of slope 0.2."""
    h = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-5)
    h = h * g[f"{layer}.weight"] + g[f"{layer}.bias"]
    return np.where(h > 0, h, 0.2 * h)


def generate(g: Arrays, z: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Images, flat, of noise and classes."""
    noise = z.astype(np.float64) @ g["of_noise.weight"].T + g["of_noise.bias"]
    h = normed(np.concatenate([noise, g["of_class.weight"].T[y]], 1), g, "paint.0")
    h = normed(h @ g["paint.2.weight"].T + g["paint.2.bias"], g, "paint.3")
    return sigmoid(h @ g["paint.5.weight"].T + g["paint.5.bias"])


def features(w: Arrays, x: NDArray[Any]) -> NDArray[Any]:
    return np.maximum(x @ w["extractor.1.weight"].T + w["extractor.1.bias"], 0)


def logits(w: Arrays, x: NDArray[Any]) -> NDArray[Any]:
    return features(w, x) @ w["head.0.weight"].T + w["head.0.bias"]


def distil(w: Arrays, x: NDArray[Any], target: NDArray[Any], settings: dict[str, Any]) -> Arrays:
    """Eq. 8 by full-batch SGD, gradients by hand."""
    w, tau = {n: t.astype(np.float64) for n, t in w.items()}, settings["temperature"]
    for _ in range(settings["distill_steps"]):
        f = features(w, x)
        by_z = tau * (softmax(logits(w, x) / tau) - target) / len(x)
        by_f = (by_z @ w["head.0.weight"]) * (f > 0)
        slopes = {
            "head.0.weight": by_z.T @ f,
            "head.0.bias": by_z.sum(0),
            "extractor.1.weight": by_f.T @ x,
            "extractor.1.bias": by_f.sum(0),
        }
        w = {n: t - settings["distill_lr"] * slopes[n] for n, t in w.items()}
    return w


def replay(directory: Path, coins: Path, settings: dict[str, Any], clients: int) -> int:
    """Checks a whole run against Wang 2023, Algorithm 1; returns how many models were compared.

    Args:
        directory: the transcript.
        coins: what the server drew each round: noise `z/3` and classes `y/3`.
        settings: the protocol's.
        clients: how many there are.

    Raises:
        BrokenRecordError: a message is missing, unexpected, or not what the messages before it make it.
    """
    everybody, drawn, T = [f"client/{k}" for k in range(clients)], load_file(coins), settings["rounds"]
    sent: dict[tuple[int, str], list[tuple[dict[str, Any], Arrays]]] = defaultdict(list)
    told: dict[tuple[int, str], dict[str, Arrays]] = defaultdict(dict)
    for message, tensors in read(directory):
        place = (message["round"], message["kind"])
        if message["sender"] == "server":
            sent[place].append((message, tensors))
        else:
            told[place][message["sender"]] = tensors
    counts = {k: float(c["n"]) for k, c in told.pop((0, "sample_count"), {}).items()}
    if set(counts) != (set(everybody) if settings["weighting"] == "samples" else set()):
        raise BrokenRecordError(f"counts of {sorted(counts)}")
    broadcasts = {
        kind: first_and_last(sent, kind, T) for kind in ("model_parameters", "generator_parameters")
    }
    for t in range(T):
        asked = sorted(broadcasts["model_parameters"][t][0]["receivers"])
        if sorted(broadcasts["generator_parameters"][t][0]["receivers"]) != asked:
            raise BrokenRecordError(f"round {t}: the generator went to others")
        uploads = {kind: of(told, t, kind, asked) for kind in kinds(settings)}
        n = np.array([counts.get(k, 1.0) for k in asked])
        w, g = (
            mean(list(uploads[f"{of_what}_parameters"].values()), n) for of_what in ("model", "generator")
        )
        x = generate(g, drawn[f"z/{t}"], drawn[f"y/{t}"])
        if settings["upload_discriminator"]:
            target = weigh(uploads, x, settings)
        else:
            target = weigh_answers(uploads, expect_samples(sent, t, x, asked), settings)
        same(w := distil(w, x, target, settings), broadcasts["model_parameters"][t + 1][1], f"round {t}: w")
        if t + 1 < T:
            same(g, broadcasts["generator_parameters"][t + 1][1], f"round {t}: generator")
    if set(broadcasts["model_parameters"][T][0]["receivers"]) != {*everybody, "world"}:
        raise BrokenRecordError("the final classifier was not published")
    return 2 * T - 1


def kinds(settings: dict[str, Any]) -> list[str]:
    models = ["model_parameters", "generator_parameters"]
    if settings["upload_discriminator"]:
        return [*models, "discriminator_parameters"]
    return [*models, "discriminator_scores", "soft_labels"]


def first_and_last(
    sent: dict[tuple[int, str], list[tuple[dict[str, Any], Arrays]]], kind: str, rounds: int
) -> list[tuple[dict[str, Any], Arrays]]:
    """What the server sent of a kind: once a round, and the classifier once more in the last."""
    numbers = [len(sent[t, kind]) for t in range(rounds)]
    if numbers != [*[1] * (rounds - 1), 2 if kind == "model_parameters" else 1]:
        raise BrokenRecordError(f"{kind} sent {numbers} times")
    return [m for t in range(rounds) for m in sent[t, kind]]


def of(
    told: dict[tuple[int, str], dict[str, Arrays]], t: int, kind: str, asked: list[str]
) -> dict[str, Arrays]:
    if sorted(told[t, kind]) != asked:
        raise BrokenRecordError(f"round {t}: asked {asked}, {kind} of {sorted(told[t, kind])}")
    return {k: told[t, kind][k] for k in asked}


def mean(models: list[Arrays], n: NDArray[Any]) -> Arrays:
    return {
        name: sum(m[name].astype(np.float64) * c for m, c in zip(models, n / n.sum(), strict=True))
        for name in models[0]
    }


def weigh(uploads: dict[str, dict[str, Arrays]], x: NDArray[Any], settings: dict[str, Any]) -> NDArray[Any]:
    """α̂ of Eq. 7 and the ensemble of Eq. 8."""
    f, s = [], []
    for k, w in uploads["model_parameters"].items():
        d = uploads["discriminator_parameters"][k]
        of, head = (w, "") if settings["share_extractor"] else (d, "head.")
        f.append(sigmoid(features(of, x) @ d[f"{head}weight"].T + d[f"{head}bias"])[:, 0])
        s.append(softmax(logits(w, x) / settings["temperature"]))
    alpha = (
        np.stack(f) / np.sum(f, 0) if settings["weights"] == "eq7" else np.full((len(f), len(x)), 1 / len(f))
    )
    return np.einsum("kn,knc->nc", alpha, np.stack(s))


def weigh_answers(
    uploads: dict[str, dict[str, Arrays]], x: NDArray[Any], settings: dict[str, Any]
) -> NDArray[Any]:
    """Appendix B; the weighted soft labels must be the classifier's, times the score that was told."""
    f, product = [], []
    for k, w in uploads["model_parameters"].items():
        f.append(uploads["discriminator_scores"][k]["values"].astype(np.float64))
        product.append(uploads["soft_labels"][k]["values"].astype(np.float64))
        if not np.allclose(
            product[-1], f[-1][:, None] * softmax(logits(w, x) / settings["temperature"]), atol=1e-5
        ):
            raise BrokenRecordError(f"{k}: soft labels are not its classifier's")
    if settings["weights"] == "uniform":
        return np.mean([p / s[:, None] for p, s in zip(product, f, strict=True)], 0)
    return np.sum(product, 0) / np.sum(f, 0)[:, None]


def expect_samples(
    sent: dict[tuple[int, str], list[tuple[dict[str, Any], Arrays]]],
    t: int,
    x: NDArray[Any],
    asked: list[str],
) -> NDArray[Any]:
    if len(sent[t, "generated_samples"]) != 1:
        raise BrokenRecordError(f"round {t}: samples sent {len(sent[t, 'generated_samples'])} times")
    ((message, tensors),) = sent[t, "generated_samples"]
    if sorted(message["receivers"]) != asked:
        raise BrokenRecordError(f"round {t}: samples went to {message['receivers']}")
    same({"samples": x}, {"samples": tensors["samples"].reshape(x.shape)}, f"round {t}: samples")
    return x


def same(made: Arrays, stated: Arrays, what: str) -> None:
    if set(made) != set(stated):
        raise BrokenRecordError(f"{what}: other parameters")
    for name, values in made.items():
        if not np.allclose(values, stated[name], rtol=1e-4, atol=2e-6):
            raise BrokenRecordError(f"{what}, {name}: off by {np.abs(values - stated[name]).max()}")


# -- the runs -----------------------------------------------------------------------------------------------------

CLIENTS, SEED, SAMPLES = 4, 7, 12
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "local_steps": 4,
    "batch_size": 8,
    "lr": 0.3,
    "generator_lr": 0.02,
    "latent": 3,
    "generator_width": 4,
    "pseudo_samples": SAMPLES,
    "distill_batch_size": SAMPLES,  # full batches: their order does not matter
    "distill_steps": 3,
    "distill_lr": 0.5,
    "temperature": 1.0,
    "fraction": 1.0,
    "weighting": "uniform",
    "weights": "eq7",
    "upload_discriminator": True,
    "share_extractor": True,
}
CASES: dict[str, dict[str, Any]] = {
    "paper": {},
    "some-clients-by-records": {"fraction": 0.5, "weighting": "samples"},
    "no-correlation": {"weights": "uniform", "temperature": 2.0},
    "no-sharing": {"share_extractor": False},
    "averages-only": {"distill_steps": 0},
    "appendix-b": {"upload_discriminator": False, "temperature": 0.5},
    "appendix-b-uniform": {"upload_discriminator": False, "weights": "uniform", "weighting": "samples"},
}


def recorded(directory: Path, change: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A finished run beside the coins of its server."""
    settings = {**SETTINGS, **change}
    run = finished(
        directory,
        clients=CLIENTS,
        dataset__limit=200,
        partition={"name": "dirichlet", "alpha": 0.5},  # unequal counts: weights matter
        splits__candidates=1,
        protocol={"name": "dafkd", "params": settings},
    )
    coins = {}
    for t in range(settings["rounds"]):
        drawn = child(known(SEED).working_seed, "dafkd", "pseudo", t)
        coins[f"y/{t}"] = torch.randint(10, (SAMPLES,), generator=drawn).numpy()
        coins[f"z/{t}"] = torch.randn(SAMPLES, settings["latent"], generator=drawn).numpy()
    save_file(coins, run / "coins.safetensors")
    return run, settings


def checked(run: Path, settings: dict[str, Any]) -> int:
    return replay(run / "transcript", run / "coins.safetensors", settings, CLIENTS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_averages_weights_and_the_distilled_model_follow_from_the_record(name: str, tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", CASES[name])
    assert checked(run, settings) == 5
    assert states_its_settings(run, settings)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["paper", "some-clients-by-records", "appendix-b"])
def test_taking_any_one_message_away_breaks_it(name: str, tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", CASES[name])
    count = breaks_without_each_message(run / "transcript", lambda: checked(run, settings))
    assert count >= 3 * (2 + 3 * 2) + 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"weights": "uniform"},
        {"temperature": 1.05},
        {"distill_lr": 0.55},
        {"distill_steps": 2},
        {"weighting": "uniform"},
    ],
    ids=lambda c: "-".join(c),
)
def test_the_reader_tells_other_settings_from_those_that_were_used(
    change: dict[str, Any], tmp_path: Path
) -> None:
    """Were the comparison too lenient, other settings would pass as well."""
    by_records = {"weighting": "samples"} if "weighting" in change else {}
    run, settings = recorded(tmp_path / "run", by_records)
    if by_records:  # without its counts, so that only the averages can tell
        take_away(run / "transcript", "sample_count")
    with pytest.raises(BrokenRecordError):
        checked(run, {**settings, **change})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["discriminator_parameters", "generator_parameters", "model_parameters"])
def test_every_value_that_a_client_sent_counts(kind: str, tmp_path: Path) -> None:
    """Other numbers in one client's message, and the record no longer fits."""
    run, settings = recorded(tmp_path / "run", {})
    message, tensors = next(
        (m, t) for m, t in read(run / "transcript") if m["kind"] == kind and m["sender"] == "client/1"
    )
    other = {n: t + np.ones((), t.dtype) for n, t in tensors.items()}
    overwrite(run / "transcript", message, other)
    with pytest.raises(BrokenRecordError):
        checked(run, settings)


def test_rows_of_appendix_bs_soft_labels_sum_to_the_scores_they_would_hide(tmp_path: Path) -> None:
    """What the card says about it: summing the scores securely hides nothing while the products are sent."""
    run, _ = recorded(tmp_path / "run", CASES["appendix-b"])
    told: dict[tuple[int, str], dict[str, Arrays]] = defaultdict(dict)
    for m, tensors in read(run / "transcript"):
        told[m["round"], m["kind"]][m["sender"]] = tensors
    for t in range(3):
        assert len(told[t, "soft_labels"]) == CLIENTS
        for k, tensors in told[t, "soft_labels"].items():
            scores = told[t, "discriminator_scores"][k]["values"]
            np.testing.assert_allclose(tensors["values"].sum(1), scores, rtol=1e-5)


def test_the_reader_uses_nothing_of_fdaudit_or_torch(tmp_path: Path) -> None:
    run, settings = recorded(tmp_path / "run", CASES["some-clients-by-records"])
    imports = (
        "from collections import defaultdict\nimport numpy as np\nfrom safetensors.numpy import load_file"
    )
    call = "replay(Path(a[1]), Path(a[2]), json.loads(a[3]), int(a[4]))"
    where = (str(run / "transcript"), str(run / "coins.safetensors"))
    compared = read_alone(__file__, imports, call, tmp_path, *where, json.dumps(settings), str(CLIENTS))
    assert compared == "5"
