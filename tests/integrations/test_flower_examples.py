"""The examples of Flower apps, from the design to the report. Of the attacks, one runs: the others take minutes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fdaudit.recording.record import Checked, check_record
from fdaudit.recording.truth import joined_notes
from fdaudit.transcript.transcript import read_messages

from ..helpers.docs_pages import ROOT
from ..helpers.recordings import state
from ..helpers.results import values_of

pytestmark = pytest.mark.thorough

Audited = tuple[Path, dict[str, Any]]


def audited(
    variant: str,
    attack: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    adversary: str = "server",
    **settings: float,
) -> Audited:
    """Run an example with one attack, and settings of its own if any; return its folder and the attack's cell."""
    spec = importlib.util.spec_from_file_location("run_flower", ROOT / "examples" / "flower" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    example: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    command = example.fdaudit
    one = (attack, f"--adversary={adversary}")

    def brief(app: str, *arguments: str, **options: Any) -> Any:
        parts = (part for a in arguments for part in (one if a == "--all" else (a,)))
        return command(app, *parts, **options)

    monkeypatch.setattr(example, "fdaudit", brief)
    app, usual = example.VARIANTS[variant]
    monkeypatch.setitem(example.VARIANTS, variant, (app, {**usual, **settings}))
    with pytest.raises(SystemExit, match=r"^0$"):
        example.main(variant, str(folder))
    assert check_record(folder / "record") == Checked((), ())
    assert (folder / "run" / "report" / "index.html").stat().st_size > 10_000
    result = json.loads((folder / "run" / "result.json").read_bytes())
    [cell] = [c for c in result["cells"] if (c["adversary"], c["attack"]) == (adversary, attack)]
    return folder, cell


def uses(folder: Path) -> tuple[dict[int, tuple[int, ...]], dict[str, str]]:
    """Return the records behind messages, and the site of each party: nodes become parties as they appear."""
    notes = sorted(folder.glob("site-*/notes.jsonl"))
    return joined_notes(folder / "truth" / "replies.jsonl", notes, folder / "truth" / "nodes.json")


def left_out(folder: Path, site: str) -> set[int]:
    told = json.loads((folder / "design" / "sites" / f"client-{site}.json").read_bytes())
    return set(told["leave_out"])


def test_digits_of_one_step_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cell = audited("one-step", "inverting-gradients", tmp_path / "out", monkeypatch)
    assert cell["status"] == "run"
    figures = values_of(cell)
    assert figures["psnr"] >= 30
    assert figures["labels_right"] == 1
    messages = list(read_messages(folder / "record" / "transcript"))
    uploads = [m for m in messages if m.sender != "server" and m.kind == "model_parameters"]
    assert len(uploads) == 6
    used, sites = uses(folder)
    for m in uploads:
        assert len(used[m.seq]) == 2
        assert not left_out(folder, sites[m.sender]) & set(used[m.seq])
    assert [m.receivers for m in messages if m.kind == "model_parameters"][-1] == ("world",)


def chance(cell: dict[str, Any]) -> float:
    """Return how often coins alone would give an AUC as high."""
    [p] = [f["p"] for f in cell["figures"] if f["name"] == "auc"]
    return float(p)


def test_members_are_told_from_uploads_of_sites_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cell = audited("fedavg", "update-projection", tmp_path / "out", monkeypatch)
    assert chance(cell) <= 0.01


def test_members_are_not_told_from_a_model_that_hardly_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = {"rounds": 1, "steps": 1, "lr": 1e-6}
    _, cell = audited("fedavg", "loss-threshold", tmp_path / "out", monkeypatch, adversary="world", **still)
    assert chance(cell) > 0.001  # the coins are fresh: this fails once in a thousand runs


def test_answers_on_public_digits_are_recorded_and_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cell = audited("fedmd", "distillation-lira", tmp_path / "out", monkeypatch)
    assert cell["status"] == "run"
    assert state(folder / "record")["rounds"] == 3
    messages = list(read_messages(folder / "record" / "transcript"))
    assert {(m.sender, m.kind) for m in messages} == {
        ("server", "proxy_indices"),
        ("server", "ensemble_labels"),
        *((f"client/{k}", "logits") for k in range(3)),
    }
    used, sites = uses(folder)
    for m in messages:
        if m.kind == "logits":
            assert m.tensors["values"].shape == (100, 10)
            assert not left_out(folder, sites[m.sender]) & set(used[m.seq])
