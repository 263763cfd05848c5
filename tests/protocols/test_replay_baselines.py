"""The record alone, read with `json` and `safetensors`, gives back every quantity of the baselines' servers.

Nothing of fdaudit takes part in the reading; models are rebuilt from the record, the public samples and the public
start by torch alone. A record with one message taken away no longer gives them back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fdaudit.testing.federation import CLASSES, public, public_labels
from fdaudit.transcript.wire import Outage

from ..helpers.protocol_cases import run
from ..helpers.record_reader import Arrays, BrokenRecordError, Record, read, samples
from ..helpers.replays import breaks_without_each_message

ROUNDS, CLIENTS, SEED = 3, 3, 5


# -- the reader: json and safetensors, numpy and torch --------------------------------------------------------------


def of(record: Record, round: int, kind: str, role: str) -> Record:
    return [
        (m, t)
        for m, t in record
        if m["round"] == round and m["kind"] == kind and m["sender"].partition("/")[0] == role
    ]


def answers(record: Record, round: int, kinds: tuple[str, ...], silent: frozenset[str]) -> dict[str, Arrays]:
    """What each client sent, once each, of those who were not silent."""
    found = [(m["sender"], t) for kind in kinds for m, t in of(record, round, kind, "client")]
    if sorted(k for k, _ in found) != sorted({f"client/{k}" for k in range(CLIENTS)} - silent):
        raise BrokenRecordError(f"round {round}: answers of {[k for k, _ in found]}")
    return dict(found)


def only(found: Record, what: str) -> Arrays:
    if len(found) != 1:
        raise BrokenRecordError(f"{len(found)} messages of {what}")
    return found[0][1]


def equal(stated: NDArray[Any], made: NDArray[Any], what: str, tolerance: float = 1e-6) -> None:
    if stated.shape != made.shape or not np.allclose(stated, made, rtol=1e-5, atol=tolerance):
        raise BrokenRecordError(f"{what} is not what the messages before it make it")


def mean_by_sample(sent: Mapping[str, Arrays], asked: NDArray[Any]) -> NDArray[Any]:
    """The mean of what clients said of each sample that the server had named, votes as one-hot rows."""
    rows = []
    for tensors in sent.values():
        if not np.array_equal(samples(tensors), asked):
            raise BrokenRecordError("a client answered for other samples")
        values = tensors["values"]
        rows.append(values.astype(np.float64) if values.ndim == 2 else np.eye(CLASSES)[values])
    return np.mean(rows, axis=0)


def era(mean: NDArray[Any], temperature: float) -> NDArray[Any]:
    powers = np.exp(mean / temperature)
    return powers / powers.sum(1, keepdims=True)


def logits(w: Mapping[str, Any], x: Tensor) -> Tensor:
    """The MLP of one hidden layer that all parties train here."""
    w = {n: torch.as_tensor(v) for n, v in w.items()}
    hidden = torch.relu(x.flatten(1) @ w["extractor.1.weight"].T + w["extractor.1.bias"])
    return hidden @ w["head.0.weight"].T + w["head.0.bias"]


def distilled(
    start: Arrays,
    x: Tensor,
    target: NDArray[Any],
    steps: int,
    rates: Callable[[int], float],
    optimizer: type[torch.optim.Optimizer],
) -> Arrays:
    """`steps` steps of cross-entropy towards `target` (n, C) on all of x at once, step s at the rate `rates(s)`."""
    w = {n: nn.Parameter(torch.tensor(v)) for n, v in start.items()}
    chosen = optimizer(w.values(), lr=1.0)  # type: ignore[call-arg]
    for step in range(steps):
        chosen.param_groups[0]["lr"] = rates(step)
        loss = -(torch.tensor(target).float() * logits(w, x).log_softmax(1)).sum(1).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()
    return {n: p.detach().numpy() for n, p in w.items()}


def constant(step: int) -> float:
    return 0.1


def cosine(steps: int) -> Callable[[int], float]:
    """FedDF's: from 1e-3 to 1e-6 along half a cosine."""
    return lambda step: 1e-6 + (1e-3 - 1e-6) * (1 + np.cos(np.pi * step / steps)) / 2


def equal_models(stated: Arrays, made: Arrays, what: str) -> None:
    if stated.keys() != made.keys():
        raise BrokenRecordError(f"{what} has other parameters")
    for name, values in made.items():
        equal(stated[name], values, f"{what}, {name}", tolerance=1e-5)


def server_models(record: Record, published: bool = True) -> list[Arrays]:
    """What the server broadcast at the start of each round, and published at the end."""
    found = [(m, t) for m, t in record if m["kind"] == "model_parameters" and m["sender"] == "server"]
    rounds = [*range(ROUNDS), *[ROUNDS - 1] * published]
    if [m["round"] for m, _ in found] != rounds or published != ("world" in found[-1][0]["receivers"]):
        raise BrokenRecordError("a broadcast of the server's model is missing")
    return [t for _, t in found]


def fedmd(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every consensus is the mean of what was said of the samples asked about."""
    for r in range(ROUNDS):
        asked = only(of(record, r, "proxy_indices", "server"), "the samples' numbers")["index"]
        mean = mean_by_sample(answers(record, r, (settings["share"],), silent), asked)
        stated = only(of(record, r, "ensemble_labels", "server"), "the consensus")
        equal(samples(stated), asked, "the consensus's index")
        equal(stated["values"], mean, "the consensus")
    return ROUNDS


def ds_fl(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every label is the sharpened mean, and the server's model is what the labels teach its public start."""
    w = start
    for r in range(ROUNDS):
        asked = only(of(record, r, "proxy_indices", "server"), "the samples' numbers")["index"]
        mean = mean_by_sample(answers(record, r, (settings["share"],), silent), asked)
        stated = only(of(record, r, "ensemble_labels", "server"), "the labels")
        equal(stated["values"], era(mean, 0.1) if settings["aggregation"] == "era" else mean, "the labels")
        w = distilled(
            w,
            public()[asked.astype(np.int64)],
            stated["values"],
            settings["distill_steps"],
            constant,
            torch.optim.SGD,
        )
    equal_models(
        only(of(record, ROUNDS - 1, "model_parameters", "server"), "the model"), w, "the server's model"
    )
    return ROUNDS + 1


def feded(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every central model is the one before, taught the mean of the clients' predictions."""
    sent = server_models(record)
    equal_models(sent[0], start, "the first model")
    for r in range(ROUNDS):
        asked = only(of(record, r, "proxy_indices", "server"), "the samples' numbers")["index"]
        mean = mean_by_sample(answers(record, r, (settings["share"],), silent), asked)
        made = distilled(
            sent[r],
            public()[asked.astype(np.int64)],
            mean,
            settings["distill_steps"],
            constant,
            torch.optim.SGD,
        )
        equal_models(sent[r + 1], made, f"the model after round {r}")
    return ROUNDS


def weighted_mean(uploads: Mapping[str, Arrays], counts: Mapping[str, int]) -> Arrays:
    """The mean of uploads of models, each weighted by its client's count."""
    total = sum(counts[k] for k in uploads)
    mean = {}
    for name in next(iter(uploads.values())):
        parts = [counts[k] / total * upload[name].astype(np.float64) for k, upload in uploads.items()]
        mean[name] = sum(parts).astype(np.float32)
    return mean


def feddf(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every model is the weighted mean of the uploads, taught the mean of their logits."""
    sent = server_models(record)
    equal_models(sent[0], start, "the first model")
    counts = {k: int(t["n"]) for k, t in answers(record, 0, ("sample_count",), silent).items()}
    for r in range(ROUNDS):
        uploads = answers(record, r, ("model_parameters",), silent)
        mean = weighted_mean(uploads, counts)
        z = torch.stack([logits(u, public()) for u in uploads.values()]).mean(0)
        teacher = z.softmax(1).numpy()
        steps = settings["distill_steps"]
        made = distilled(mean, public(), teacher, steps, cosine(steps), torch.optim.Adam)
        equal_models(sent[r + 1], made, f"the model after round {r}")
    return ROUNDS


def fedftg(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Without fine-tuning, every model is the mean of the uploads, weighted by the class counts' sums."""
    sent = server_models(record)
    equal_models(sent[0], start, "the first model")
    counts = {k: int(t["counts"].sum()) for k, t in answers(record, 0, ("class_counts",), silent).items()}
    for r in range(ROUNDS):
        uploads = answers(record, r, ("model_parameters",), silent)
        mean = weighted_mean(uploads, counts)
        equal_models(sent[r + 1], mean, f"the model after round {r}")
    return ROUNDS


def drawn(*path: str | int) -> torch.Generator:
    """The run's named generator, as docs/randomness.md defines it."""
    text = json.dumps([SEED, *path], separators=(",", ":"))
    digest = hashlib.sha256(text.encode("ascii")).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def initial_generator(latent: int, width: int, features: int) -> nn.ModuleDict:
    """FedGEN's generator as PyTorch's own initialisers draw it from the seed."""
    seed = int(torch.randint(2**63 - 1, (), generator=drawn("fedgen", "generator")))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = nn.Linear(latent + CLASSES, width)
        return nn.ModuleDict(
            {"hidden": first, "norm": nn.LayerNorm(width), "last": nn.Linear(width, features)}
        )


def fedgen_features(G: nn.ModuleDict, noise: Tensor, y: Tensor) -> Tensor:
    return G["last"](torch.relu(G["norm"](G["hidden"](torch.cat([noise, torch.eye(CLASSES)[y]], 1)))))


def fedgen_loss(
    z: Tensor, noise: Tensor, y: Tensor, uploads: list[Arrays], share: Tensor, rule: str, diversity: float
) -> Tensor:
    """The server's loss, client by client; share (K, C) are the clients' shares of a class."""
    heads = [(torch.tensor(u["head.0.weight"]), torch.tensor(u["head.0.bias"])) for u in uploads]
    told = [z @ weight.T + bias for weight, bias in heads]
    right = torch.arange(len(y)), y
    if rule == "logits":
        loss = -torch.stack(told).mean(0).log_softmax(1)[right].mean()
    else:
        loss = sum((-s[y] * t.log_softmax(1)[right]).mean() for s, t in zip(share, told, strict=True))
    apart = (noise[:, None] - noise).square().mean(2) * (z[:, None] - z).abs().mean(2)
    return loss + diversity * (-apart.mean()).exp()


def fedgen(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every model is the weighted mean of the uploads; every generator is what their heads teach the one before."""
    cfg = {"ensemble": "classes", "labels": "uniform", "diversity": 1.0, "share": "all", **settings}
    whole = cfg["share"] == "all"  # heads alone are not published
    names = [n for n in start if whole or n.startswith("head.")]
    sent = server_models(record, published=whole)
    equal_models(sent[0], {n: start[n] for n in names}, "the first model")
    counts = {k: t["counts"] for k, t in answers(record, 0, ("class_counts",), silent).items()}
    G = initial_generator(cfg["latent"], cfg["generator_width"], start["head.0.weight"].shape[1])
    adam = torch.optim.Adam(G.parameters(), lr=3e-4, weight_decay=0.01)
    for r in range(ROUNDS):
        stated = only(of(record, r, "generator_parameters", "server"), "the generator")
        equal_models(stated, {n: p.detach().numpy() for n, p in G.named_parameters()}, "the generator")
        uploads = answers(record, r, ("model_parameters",), silent)
        total = sum(int(counts[k].sum()) for k in uploads)
        mean = {
            n: sum(counts[k].sum() / total * u[n].astype(np.float64) for k, u in uploads.items()).astype(
                np.float32
            )
            for n in names
        }
        table = torch.tensor(np.stack([counts[k] for k in uploads])).double()
        share = torch.where(table.sum(0) > 0, table / table.sum(0).clamp_min(1), 1 / len(table)).float()
        draws = drawn("fedgen", "features", r)
        for _ in range(cfg["generator_steps"]):
            often = table.sum(0).float() if cfg["labels"] == "classes" else (table.sum(0) > 0).float()
            y = torch.multinomial(often, cfg["generated"], replacement=True, generator=draws)
            noise = torch.randn(len(y), cfg["latent"], generator=draws)
            z = fedgen_features(G, noise, y)
            adam.zero_grad()
            fedgen_loss(
                z, noise, y, list(uploads.values()), share, cfg["ensemble"], cfg["diversity"]
            ).backward()
            adam.step()
        if whole or r + 1 < ROUNDS:
            equal_models(sent[r + 1], mean, f"the model after round {r}")
    return 2 * ROUNDS


def mean_by_class(tables: list[NDArray[Any]]) -> NDArray[Any]:
    made = np.zeros((CLASSES, CLASSES))
    for c in range(CLASSES):
        rows = [t[c] for t in tables if t[c].any()]
        if rows:
            made[c] = np.mean(rows, axis=0)
    return made


def filtered_means(rows: NDArray[Any], least: int, sigma: float) -> list[NDArray[Any]]:
    """The means that Cronus's filter can end with, whatever its draws: nearer rows stay, the farthest goes."""
    away = rows - rows.mean(0)
    _, values, axes = np.linalg.svd(away)
    distance = np.abs(away @ axes[0])
    order = np.argsort(distance)
    if values[0] ** 2 / len(rows) <= 9 * sigma**2 or distance[order[least - 1]] == distance.max():
        return [rows.mean(0)]
    return [mean for n in range(least, len(rows)) for mean in filtered_means(rows[order[:n]], least, sigma)]


def cronus(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every row of an aggregate is a mean that the filter can end with."""
    for r in range(ROUNDS):
        asked = only(of(record, r, "proxy_indices", "server"), "the samples' numbers")["index"]
        sent = answers(record, r, (settings["share"],), silent)
        mean_by_sample(sent, asked)  # all answered what was asked
        stated = only(of(record, r, "ensemble_labels", "server"), "the aggregate")
        equal(samples(stated), asked, "the aggregate's index")
        said = [t["values"] if t["values"].ndim == 2 else np.eye(CLASSES)[t["values"]] for t in sent.values()]
        for row, rows in zip(stated["values"], np.stack(said, 1).astype(np.float64), strict=True):
            ends = filtered_means(rows, len(rows) // 2 + 1, settings["sigma"])
            if not any(np.allclose(row, end, atol=1e-6) for end in ends):
                raise BrokenRecordError("a row of the aggregate is no filtered mean")
    return ROUNDS


def fused_by_hand(z: NDArray[Any], y: int) -> NDArray[Any] | None:
    """FedGEMS's fused logits of the clients (K, C) that are right, weighted by e to the inverse entropy."""
    right = z[z.argmax(1) == y].astype(np.float64)
    if not len(right):
        return None
    p = np.exp(right - right.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    confidence = -1 / (p * np.log(p)).sum(1)
    weights = np.exp(confidence - confidence.max())
    return (weights / weights.sum()) @ right


def fedgems(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """The server's requests, its logits and its model follow from its start, the labels and the clients' logits."""
    w, y, pool = start, public_labels().numpy(), dict[int, NDArray[Any]]()
    epsilon = settings["epsilon"]
    for r in range(ROUNDS):
        stated = only(of(record, r, "logits", "server"), "the server's logits")
        drawn = samples(stated).astype(np.int64)
        before = logits(w, public()[drawn]).detach().numpy()
        correct = before.argmax(1) == y[drawn]
        pool |= {int(i): z for i, z, right in zip(drawn, before, correct, strict=True) if right}
        unknown = [int(i) for i in drawn if int(i) not in pool]
        teachers = dict(pool)
        requests = of(record, r, "proxy_indices", "server")
        if bool(requests) != bool(unknown):
            raise BrokenRecordError(f"round {r}: {len(requests)} requests for {len(unknown)} samples")
        if unknown:
            equal(requests[0][1]["index"], np.array(unknown), "the request")
            sent = answers(record, r, ("logits",), silent)
            mean_by_sample(sent, np.array(unknown))
            for row, i in enumerate(unknown):
                fused = fused_by_hand(np.stack([t["values"][row] for t in sent.values()]), int(y[i]))
                if fused is not None:
                    teachers[i] = fused
        target = np.eye(CLASSES)[y[drawn]]
        for row, i in enumerate(drawn.tolist()):
            if not correct[row] and i in teachers:
                p = np.exp(teachers[i] - teachers[i].max())
                target[row] = epsilon * target[row] + (1 - epsilon) * p / p.sum()
        w = distilled(w, public()[drawn], target, settings["server_epochs"], lambda _: 1e-2, torch.optim.Adam)
        made = logits(w, public()[drawn]).detach().numpy()
        equal(stated["values"], made, "the server's logits", tolerance=1e-4)
    equal_models(
        only(of(record, ROUNDS - 1, "model_parameters", "server"), "the model"), w, "the server's model"
    )
    return ROUNDS + 1


def fkd(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Every client is sent the mean of the others' tables."""
    for r in range(ROUNDS):
        tables = {k: t["values"] for k, t in answers(record, r, ("class_prototypes",), silent).items()}
        back = {m["receivers"][0]: t["values"] for m, t in of(record, r, "class_prototypes", "server")}
        if set(back) != {f"client/{k}" for k in range(CLIENTS)}:
            raise BrokenRecordError(f"round {r}: tables to {sorted(back)}")
        for k, stated in back.items():
            equal(stated, mean_by_class([t for j, t in tables.items() if j != k]), f"the table to {k}")
    return ROUNDS * CLIENTS


def pls(record: Record, settings: dict[str, Any], start: Arrays, silent: frozenset[str]) -> int:
    """Everybody is sent the mean of all tables."""
    for r in range(ROUNDS):
        tables = [t["values"] for t in answers(record, r, ("class_prototypes",), silent).values()]
        stated = only(of(record, r, "class_prototypes", "server"), "the table")
        equal(stated["values"], mean_by_class(tables), "the table")
    return ROUNDS


READERS = {
    "cronus": cronus,
    "fedgems": fedgems,
    "fedgen": fedgen,
    "fedmd": fedmd,
    "ds-fl": ds_fl,
    "feded": feded,
    "feddf": feddf,
    "fedftg": fedftg,
    "fkd": fkd,
    "pls": pls,
}


# -- the runs -------------------------------------------------------------------------------------------------------

STEPS = {"local_steps": 2, "lr": 0.1}
ALONE = {**STEPS, "distill_steps": 3, "public_batch": 5, "distill_batch_size": None}
ROBUST = {**STEPS, "public_batch": 5, "sigma": 0.01}
LARGER = {
    **STEPS,
    "distill_steps": 3,
    "public_batch": 5,
    "server_epochs": 3,
    "server_batch_size": 128,
    "server_lr": 1e-2,
}
GENERATED = {**STEPS, "latent": 3, "generator_width": 4, "generated": 6, "generator_steps": 3}
FUSED = {**STEPS, "distill_steps": 3, "distill_batch_size": 128}
CASES = [
    pytest.param(name, settings, id="-".join([name, *map(str, list(settings.values())[len(base) :])]))
    for name, base, more in (
        ("fedmd", ALONE, {"share": ("logits", "soft_labels", "hard_labels")}),
        ("ds-fl", {**ALONE, "share": "soft_labels"}, {"aggregation": ("era", "sa")}),
        ("ds-fl", {**ALONE, "aggregation": "era"}, {"share": ("hard_labels",)}),
        ("feded", ALONE, {"share": ("soft_labels", "hard_labels")}),
        ("cronus", ROBUST, {"share": ("soft_labels", "hard_labels")}),
        ("fedgems", LARGER, {"epsilon": (0.75, 0.0)}),
        ("feddf", FUSED, {"fraction": (1.0,)}),
        ("fedftg", STEPS, {"iterations": (0,)}),
        ("fedgen", GENERATED, {"share": ("all", "head")}),
        ("fedgen", {**GENERATED, "labels": "classes"}, {"ensemble": ("logits",)}),
        ("fkd", STEPS, {"share": ("soft", "hard")}),
        ("pls", STEPS, {"share": ("soft", "hard")}),
    )
    for key, values in more.items()
    for settings in ({**base, key: value} for value in values)
]
NOBODY: frozenset[str] = frozenset()


def recorded(
    folder: Path, name: str, settings: dict[str, Any], silent: frozenset[str] = NOBODY
) -> tuple[Path, Arrays]:
    """A run's transcript, and the public start of the server's model."""
    gone = [Outage(party=k, first=0, last=ROUNDS - 1) for k in silent]
    ran = run(folder, name, settings, rounds=ROUNDS, seed=SEED, outages=gone)
    return folder, {n: t.numpy() for n, t in ran.setting.initial["server"].items()}


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.parametrize("silent", [NOBODY, frozenset({"client/1"})], ids=["all", "one-silent"])
def test_every_quantity_of_the_server_follows_from_the_record(name, settings, silent, tmp_path):
    folder, start = recorded(tmp_path / "a", name, settings, silent)
    assert READERS[name](read(folder), settings, start, silent) >= ROUNDS


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_taking_any_one_message_away_breaks_it(name, settings, tmp_path):
    folder, start = recorded(tmp_path / "a", name, settings)
    count = breaks_without_each_message(folder, lambda: READERS[name](read(folder), settings, start, NOBODY))
    assert count >= ROUNDS * (CLIENTS + 1)


@pytest.mark.parametrize(
    ("name", "reader", "change"),
    [
        ("ds-fl", "ds-fl", {"aggregation": "sa"}),
        ("ds-fl", "ds-fl", {"distill_steps": 2}),
        ("ds-fl", "fedmd", {}),
        ("feded", "feded", {"distill_steps": 2}),
        ("cronus", "fedmd", {}),
        ("cronus", "cronus", {"sigma": 1.0}),
        ("fedgems", "fedgems", {"epsilon": 0.5}),
        ("fedgems", "fedgems", {"server_epochs": 2}),
        ("feddf", "feddf", {"distill_steps": 2}),
        ("fedgen", "fedgen", {"ensemble": "logits"}),
        ("fedgen", "fedgen", {"diversity": 0.0}),
        ("fedgen", "fedgen", {"generator_steps": 2}),
        ("fedgen", "fedgen", {"share": "head"}),
        ("fkd", "pls", {}),
        ("pls", "fkd", {}),
    ],
)
def test_the_reader_tells_another_rule_from_the_right_one(name, reader, change, tmp_path):
    own = {
        "ds-fl": {**ALONE, "share": "soft_labels", "aggregation": "era"},
        "feded": {**ALONE, "share": "soft_labels"},
        "cronus": {**ROBUST, "share": "soft_labels"},
        "fedgems": {**LARGER, "epsilon": 0.0},
        "feddf": FUSED,
        "fedgen": GENERATED,
    }.get(name, STEPS)
    folder, start = recorded(tmp_path / "a", name, own)
    READERS[name](read(folder), own, start, NOBODY)
    with pytest.raises(BrokenRecordError):
        READERS[reader](read(folder), {**own, **change}, start, NOBODY)
