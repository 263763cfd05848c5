"""Cronus: its filter against another writing and at its limits, and who learns from what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.protocols.cronus import robust_mean
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fdaudit.rng import child
from fdaudit.testing.federation import public, records
from fdaudit.training.trainer import draw_batches
from fdaudit.transcript.wire import Delivery

from ..helpers.by_hand import close, module_of, tensors
from ..helpers.protocol_cases import configured, run


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def predictions(n: int, K: int, C: int, seed: int = 0) -> Tensor:
    return torch.randn(n, K, C, generator=drawn(seed), dtype=torch.float64).mul(3).softmax(2)


def every(values: Tensor) -> Tensor:
    return torch.ones(values.shape[:2], dtype=torch.bool)


def filtered(rows: NDArray[Any], sigma: float, Us: list[float]) -> NDArray[Any]:
    """The filter of one sample, by singular vectors, from the box of the paper; one of `Us` for each pass."""
    least = len(rows) // 2 + 1
    for u in Us:
        away = rows - rows.mean(0)
        _, values, axes = np.linalg.svd(away)
        if values[0] ** 2 / len(rows) <= 9 * sigma**2:
            break
        p = np.abs(away @ axes[0])
        low, high = np.sort(p)[least - 1], p.max()
        if low == high:
            break
        T = np.sqrt(low**2 + (1 - u) * (high**2 - low**2))
        rows = rows[(p <= low) | ((p < T) & (p < high))]
    return rows.mean(0)


def test_the_filter_is_what_another_writing_of_it_gives() -> None:
    values, present = predictions(60, 7, 4), torch.rand(60, 7, generator=drawn(1)) < 0.8
    present[:, 0] = True
    draws = drawn(2)
    Us = torch.stack([torch.rand(60, 1, dtype=torch.float64, generator=draws)[:, 0] for _ in range(8)])
    found, plain = robust_mean(values, present, 0.12, drawn(2)), 0
    for i in range(60):
        rows = values[i][present[i]].numpy()
        by_hand = filtered(rows, 0.12, Us[:, i].tolist())
        np.testing.assert_allclose(found[i].numpy(), by_hand, atol=1e-12)
        plain += int(np.allclose(by_hand, rows.mean(0)))
    assert 0 < plain < 60, "the filter acts on some samples"


def test_a_minority_far_away_has_no_influence() -> None:
    honest = predictions(20, 7, 4).mul(0.01).add(torch.tensor([0.9, 0.0, 0.0, 0.05]))
    liars = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64).expand(20, 2, 4)
    values = torch.cat([liars, honest], 1)
    found = robust_mean(values, every(values), 0.05, drawn())
    torch.testing.assert_close(found, honest.mean(1))
    assert (values.mean(1) - honest.mean(1)).abs().max() > 0.1


@pytest.mark.parametrize("K", [1, 2])
def test_one_or_two_clients_are_never_filtered(K: int) -> None:
    values = predictions(10, K, 3)
    torch.testing.assert_close(robust_mean(values, every(values), 1e-6, drawn()), values.mean(1))


def test_a_sigma_of_a_quarter_filters_no_distribution() -> None:
    """The variance of points of the simplex is at most a half: of two corners, in halves."""
    corners = torch.eye(2, dtype=torch.float64)[torch.tensor([[0, 0, 0, 1, 1, 1]])]
    for values in (corners, predictions(100, 5, 3)):
        torch.testing.assert_close(robust_mean(values, every(values), 0.24, drawn()), values.mean(1))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_prediction_that_is_no_number_spoils_its_own_sample_only(wrong: float) -> None:
    values = predictions(5, 4, 3)
    spoilt = values.clone()
    spoilt[2, 1, 0] = wrong
    found, clean = (robust_mean(v, every(v), 0.02, drawn()) for v in (spoilt, values))
    assert not found[2].isfinite().all()
    rest = torch.tensor([0, 1, 3, 4])
    torch.testing.assert_close(found[rest], clean[rest])


def test_the_order_of_clients_decides_nothing_and_each_sample_stands_alone() -> None:
    values = predictions(50, 5, 3)
    found = robust_mean(values, every(values), 0.02, drawn())
    turned = values[:, torch.tensor([3, 0, 4, 1, 2])]
    torch.testing.assert_close(robust_mean(turned, every(turned), 0.02, drawn()), found)
    other = values.clone()
    other[7] = values[8]
    changed = (robust_mean(other, every(other), 0.02, drawn()) - found).abs().amax(1) > 1e-12
    assert changed.nonzero().flatten().tolist() in ([7], [])


def test_a_client_that_lies_moves_the_mean_and_not_the_robust_mean(tmp_path: Any) -> None:
    """Client 2 sends message 3, and claims class 0 of everything."""

    def lie(delivery: Delivery) -> Delivery:
        if delivery.seq != 3:
            return delivery
        values = torch.zeros_like(delivery["values"])
        values[:, 0] = 1
        return Delivery({**delivery, "values": values}, delivery.seq)

    moved = []
    for sigma in (0.24, 0.01):
        params = {"sigma": sigma, "warm_up_steps": 0, "local_steps": 1}
        true, false = (
            run(tmp_path / f"{sigma}-{i}", "cronus", params, rounds=1, alter=alter)
            for i, alter in enumerate((lambda d: d, lie))
        )
        said = [tensors(r, "ensemble_labels")[0]["values"] for r in (true, false)]
        moved.append(float((said[0] - said[1]).abs().mean()))
    assert moved[1] < moved[0] / 3


def test_a_client_trains_on_its_records_and_the_aggregate_in_the_same_batches(tmp_path: Any) -> None:
    params = {"local_epochs": 2, "warm_up_steps": 0, "batch_size": 4}
    ran = run(tmp_path / "a", "cronus", params, rounds=1)
    config: Any = configured("cronus", params, 1)
    (told,) = (t["values"] for t in tensors(ran, "ensemble_labels"))
    for k, data in records().items():
        model = module_of(ran.setting.initial[k])
        sgd = torch.optim.SGD(model.parameters(), lr=config.lr)
        order = child(5, "cronus", "update", 0, k, "batches")
        for batch in draw_batches(len(data) + len(public()), 4, steps=None, epochs=2, generator=order):
            own, other = batch[batch < len(data)], batch[batch >= len(data)] - len(data)
            loss = F.cross_entropy(model(data.x[own]), data.y[own], reduction="sum")
            loss = loss - (told[other] * model(public()[other]).log_softmax(1)).sum()
            sgd.zero_grad()
            (loss / len(batch)).backward()
            sgd.step()
        close(ran.rounds[0].models[k], model.state_dict())
