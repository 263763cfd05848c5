"""Protocols on texts: what a message declares, what the record alone gives back, and rounds that resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fdaudit.protocols import REGISTRY
from torch.func import functional_call
from torch.nn import functional as F

from fdaudit.tasks import TEXT
from fdaudit.testing.federation import of_texts, records, tokens, worded

from ..helpers.protocol_cases import run
from ..helpers.record_reader import BrokenRecordError, read
from ..helpers.run_cases import finished
from ..helpers.text_cases import text_federation
from .fedkd import test_replay_fedkd as fedkd

pytestmark = pytest.mark.thorough

GIVEN = {"task": TEXT}
ABLE = (
    "centralized",
    "ds-fl",
    "fedavg",
    "feddf",
    "feded",
    "fedgen",
    "fedkd",
    "fedmd",
    "fkd",
    "pls",
    "standalone",
)


def ran(folder, name, params=None, **more):
    return run(folder, name, params or {}, **{"clients": worded(records()), **GIVEN, **more})


def test_protocols_that_make_or_embed_images_do_not_declare_texts():
    assert {name for name in REGISTRY.names() if "text" in REGISTRY.describe(name).tasks} == set(ABLE)


@pytest.mark.parametrize("name", ["fedkd", "feddf", "fedmd"])
def test_clients_may_train_unlike_transformers(name, tmp_path):
    made = ran(tmp_path / "a", name, unlike=True)
    assert len({len(model["head.weight"][0]) for model in made.rounds[-1].models.values()}) > 1


# -- replay: the record alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"grid": "eq3"}, {"levels": None, "weights": "uniform"}], ids=str)
def test_the_ensemble_of_fedkd_follows_from_logits_and_counts(changes, tmp_path):
    settings = {"levels": 200, "grid": "eq4", "weights": "class-counts", "gamma": None, **changes}
    params = {"local_epochs": 2, "distill_rounds": 1, "distill_steps": 2, **settings}
    folder = finished(
        tmp_path / "run",
        clients=3,
        splits={"test": 0.2, "proxy": 0.2, "auxiliary": 0.1, "candidates": 1},
        protocol={"name": "fedkd", "params": params},
        **text_federation(tmp_path),
    )
    residual = fedkd.replay(folder / "transcript", settings, 3)
    assert residual.shape == (30, 3)
    assert np.abs(residual).max() <= fedkd.worth(folder)


def logits(weights, x):
    module = of_texts().build(torch.Generator().manual_seed(0))
    return functional_call(module, {n: torch.as_tensor(v) for n, v in weights.items()}, (x,))


def replay_feddf(record, steps, clients):
    """Check a run of FedDF whose batch is every public text: Lin et al. 2020, Algorithm 1."""
    counts = {m["sender"]: int(t["n"]) for m, t in record if m["kind"] == "sample_count"}
    models = [(m, t) for m, t in record if m["kind"] == "model_parameters"]
    sent = [t for m, t in models if m["sender"] == "server"]
    if len(counts) != clients or len(models) != clients * (len(sent) - 1) + len(sent):
        raise BrokenRecordError("a message is missing")
    for t, stated in enumerate(sent[1:]):
        own = {m["sender"]: w for m, w in models if m["round"] == t and m["sender"] in counts}
        total = sum(counts.values())
        w = {n: torch.tensor(sum(counts[k] / total * own[k][n] for k in own)).float() for n in stated}
        target = (
            torch.stack([logits(own[k], tokens(7, "public")) for k in sorted(own)])
            .mean(0)
            .softmax(1)
            .detach()
        )
        free = {n: v.requires_grad_() for n, v in w.items()}
        adam = torch.optim.Adam(free.values(), lr=1e-3)
        for step in range(steps):
            adam.param_groups[0]["lr"] = 1e-6 + (1e-3 - 1e-6) * (1 + np.cos(np.pi * step / steps)) / 2
            loss = F.kl_div(logits(free, tokens(7, "public")).log_softmax(1), target, reduction="batchmean")
            adam.zero_grad()
            loss.backward()
            adam.step()
        for name, value in free.items():
            if not np.allclose(value.detach().numpy(), stated[name], atol=2e-5):
                gap = np.abs(value.detach().numpy() - stated[name]).max()
                raise BrokenRecordError(f"round {t}: {name} differs by {gap}")
    return len(sent) - 1


def test_every_fused_model_of_feddf_follows_from_the_recorded_uploads(tmp_path):
    params = {"distill_batch_size": len(tokens(7, "public")), "distill_steps": 4}
    record = read(ran(tmp_path / "a", "feddf", params).folder)
    assert replay_feddf(record, 4, 3) == 3
    with pytest.raises(BrokenRecordError, match="differs by"):
        replay_feddf(record, 2, 3)
    for k in range(len(record)):
        with pytest.raises((BrokenRecordError, KeyError)):
            replay_feddf(record[:k] + record[k + 1 :], 4, 3)
