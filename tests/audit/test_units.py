"""Units of privacy: records that belong together, and classes that a single record brings, are stated."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fdaudit
from fdaudit.accounting.charges import Grouped
from fdaudit.accounting.costs import epsilon
from fdaudit.data import load_dataset
from fdaudit.errors import SpecError, UsageError
from fdaudit.events import Gaussian, SampledGaussian
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec
from fdaudit.testing.specs import small_spec

from ..helpers.mask_cases import write_masks
from ..helpers.text_cases import texts

RECORD: dict[str, Any] = {"unit": "record", "relation": "add-or-remove", "covers": ("data",)}
DP_SGD = {
    "at": "training",
    "name": "dp-sgd",
    "params": {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.2},
}
N = 120


def images(folder: Path, labels: Any, **more: Any) -> dict[str, Any]:
    x = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(folder / "records.npz", train_images=x, train_labels=labels, **more)
    params = {"rounds": 1, "local_steps": 3, "batch_size": 16, "weighting": "uniform"}
    return small_spec(
        dataset={"name": f"npz:{folder / 'records.npz'}"},
        protocol={"name": "fedavg", "params": params},
        defenses=[DP_SGD],
    )


def event(count: int = 3) -> SampledGaussian:
    return SampledGaussian(sensitivity=1.0, scale=2.0, sample_rate=0.2, count=count, **RECORD)


# -- classes --------------------------------------------------------------------------------------------------------


def test_a_class_of_one_record_is_stated(tmp_path: Path) -> None:
    """Without that record the networks would have 10 outputs: the figure does not cover it."""
    labels = np.arange(N) % 10
    for seed in range(6):  # where the record lies is a matter of chance
        labels[7] = 10
        run = fdaudit.run({**images(tmp_path, labels), "seed": seed}, tmp_path / f"run-{seed}")
        held = int(run.case.splits.class_table.sum(0)[10])
        warned = [w for w in run.ledger("server").warnings if "Class 10 occurs in one record" in w]
        assert len(warned) == (held == 1)
        if held == 1:
            assert "11 outputs" in warned[0]
            return
    pytest.fail("no split gave the record to a client")


def test_a_class_of_several_records_is_no_matter(tmp_path: Path) -> None:
    run = fdaudit.run(images(tmp_path, np.arange(N) % 4), tmp_path / "run")
    assert not any("Class" in w for w in run.ledger("server").warnings)


# -- groups ---------------------------------------------------------------------------------------------------------


def grouped_run(folder: Path, **changes: Any) -> fdaudit.Run:
    """One client, so that no group is divided; few records are set aside, and those are groups of their own."""
    groups = np.arange(N)
    spec = images(folder, np.arange(N) % 4, train_groups=groups)
    whole = {"clients": 1, "splits": {"test": 0.1, "proxy": 0.0, "auxiliary": 0.0, "candidates": 0}}
    run = fdaudit.run({**spec, **whole, **changes}, folder / "probe")
    held = run.case.splits.clients[0].train
    groups[held[:3]] = held[0]
    spec = images(folder, np.arange(N) % 4, train_groups=groups)
    return fdaudit.run({**spec, **whole, **changes}, folder / "run", seed_from=folder / "probe")


@pytest.mark.thorough
def test_a_group_of_records_costs_what_they_cost_together(tmp_path: Path) -> None:
    run = grouped_run(tmp_path)
    one, all_three = run.ledger("server"), run.ledger("server", unit="group")
    assert (one.unit, all_three.unit) == ("record", "group")
    assert one.epsilon == pytest.approx(epsilon({event(): 1}, 1e-5).value)
    assert all_three.epsilon == pytest.approx(epsilon({Grouped(event=event(), size=3): 1}, 1e-5).value)
    assert all_three.epsilon > 1.5 * one.epsilon
    assert any("the unit group" in w for w in one.warnings)
    assert not any("the unit group" in w for w in all_three.warnings)
    assert any("more than 3" in line for line in all_three.assumptions)
    assert run.profile("server", unit="group").unit == "group"
    assert all_three.contributions[0].mechanism == "SampledGaussian"
    with pytest.raises(UsageError, match="group"):
        fdaudit.joint([run, fdaudit.load(tmp_path / "probe")]).ledger("server", unit="group")


def test_a_bound_for_a_client_holds_for_its_groups_as_it_is(tmp_path: Path) -> None:
    noise = {"name": "gaussian-noise", "params": {"sigma": 20.0, "clip": 1.0}}
    defence = {"kind": "model_update", "sender": "client", **noise}
    run = grouped_run(tmp_path, defenses=[defence])
    alone = Gaussian(sensitivity=2.0, scale=20.0, unit="record", relation="replace-one", covers=("data",))
    found = run.ledger("server", unit="group")
    assert found.epsilon == run.ledger("server").epsilon == pytest.approx(epsilon({alone: 1}, 1e-5).value)


def test_a_group_that_several_clients_hold_has_no_epsilon(tmp_path: Path) -> None:
    spec = images(tmp_path, np.arange(N) % 4, train_groups=np.arange(N) // 60)
    found = fdaudit.run(spec, tmp_path / "run").ledger("server", unit="group")
    assert found.epsilon == math.inf
    assert "one group lie" in found.cause


def test_groups_come_from_a_column_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label", "group"])
        writer.writerows((text, label, f"person {n // 4}") for n, (text, label) in enumerate(texts(60)))
    found = load_dataset(DatasetSpec(name=f"text:{file}"), SecretStream(b"x" * 16, "d")).groups
    assert found is not None
    assert found.tolist() == [n // 4 for n in range(60)]


def test_the_unit_group_needs_groups(tmp_path: Path) -> None:
    run = fdaudit.run(images(tmp_path, np.arange(N) % 4), tmp_path / "run")
    with pytest.raises(SpecError, match="records belong together"):
        run.ledger("server", unit="group")


def test_crops_of_a_picture_are_a_group(tmp_path: Path) -> None:
    file = write_masks(tmp_path / "masks.npz")
    dataset = load_dataset(DatasetSpec(name=f"masks:{file}"), SecretStream(b"x" * 16, "d"))
    assert dataset.groups is dataset.pictures
