"""Every number of a report's JSON, recomputed from the run directory by code that shares nothing with the report's.

Two small runs: gradients that give images, membership and class shares away, and answers under DP-SGD, whose claimed ε
is checked on canaries. Every number is claimed or fails by its path; what is claimed by less than a recomputation is
listed with its reason in `LIMITED` (`tests/reports/recompute/recompute_claims.py`).
"""

from __future__ import annotations

import ast
import copy
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

import fdaudit

from .recompute import recompute
from .recompute_cells import claim_cell
from .recompute_claims import LIMITED, Claims, differences, leaves, text_of
from .recompute_evidence import Evidence
from .recompute_statistics import bca, drawn, mean_of

pytestmark = [pytest.mark.usefixtures("forked_processes"), pytest.mark.thorough]

COMMON = {
    "seed": 11,
    "profile": "quick",
    "device": "cpu",
    "threads": 1,
    "victims": 2,
    "splits": {"test": 0.2, "proxy": 0.4, "auxiliary": 0.2, "candidates": 12},
    "model": {"name": "mlp", "params": {"widths": [24]}},
}
LEAKING = COMMON | {
    "clients": 3,
    "partition": {"name": "dirichlet", "alpha": 1.0},
    "protocol": {"name": "fedavg", "params": {"rounds": 3, "upload": "gradient", "batch_size": 8, "lr": 0.5}},
    "references": ["standalone", "centralized"],
    "adversaries": ["server", "world", "server+client/0"],
    "attacks": [
        {"name": "analytic", "adversaries": ["server"]},
        {"name": "dlg", "params": {"evaluations": 25, "restarts": 1}, "adversaries": ["server"]},
        {"name": "label-updates", "adversaries": ["server"]},
        {"name": "loss-threshold", "adversaries": ["world", "server+client/0"]},
    ],
    "gates": {
        "reconstruction_gain_db": 3.0,
        "membership_auc": 0.9,
        "membership_tpr_at_1fpr": 0.5,
        "label_tv": 0.05,
    },
}
BOUNDED = COMMON | {
    "clients": 2,
    "canaries": {"count": 64, "clients": [0], "kind": "noise", "guesses": 32},
    "preset": {"name": "private", "epsilon": 4.0},
    "protocol": {"name": "fedkd", "params": {"local_epochs": 2, "distill_rounds": 2, "distill_steps": 5}},
    "references": [],
    "adversaries": ["server", "aggregator", "world"],
    "attacks": [{"name": "loss-threshold"}, {"name": "label-answers"}],
}


class Reported(NamedTuple):
    """A run's evidence, the JSON of its report, and that of the public variant."""

    evidence: Evidence
    document: Any
    public: Any

    def claims(self, document: Any = None) -> Claims:
        return recompute(self.evidence, self.document if document is None else document)


def _reported(spec: dict[str, Any], folder: Path) -> Reported:
    run = fdaudit.run(spec, folder)
    pages = [fdaudit.report(run), fdaudit.report(run, public=True)]
    documents = [json.loads(page.with_suffix(".json").read_text("utf-8")) for page in pages]
    return Reported(Evidence(folder, run.case.encoder), *documents)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reported]:
    """Without the weights of LPIPS and FID, wherever this machine has them: their figures are unavailable here."""
    specs = {"leaking": LEAKING, "bounded": BOUNDED}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FDAUDIT_WEIGHTS", raising=False)
        patch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("no-weights")))
        return {name: _reported(spec, tmp_path_factory.mktemp(name) / "run") for name, spec in specs.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["leaking", "bounded"])
def test_every_number_of_the_report_is_recomputed_from_the_run(
    reports: dict[str, Reported], name: str
) -> None:
    report = reports[name]
    found = differences(report.document, report.claims())
    assert not found, "\n".join(found)
    assert len(list(leaves(report.document))) > 700


def coarseness(path: Any, value: float) -> float:
    """How far a public number may lie from the exact one that stands in the same place."""
    if path[-1] == "bytes":
        return 0.05 * value  # two digits
    if path[0] == "matrix":
        return 0.5  # half a dB
    return 0.005 if path[:2] == ("result", "utility") else 0.0


@pytest.mark.parametrize("name", ["leaking", "bounded"])
def test_the_public_variant_has_no_number_of_its_own(reports: dict[str, Reported], name: str) -> None:
    whole, public = (dict(leaves(d)) for d in (reports[name].document, reports[name].public))
    figures = {path: v for path, v in public.items() if path[:2] == ("result", "cells") and "figures" in path}
    assert [v for v in figures.values() if not v.is_integer() and not round(20 * v, 6).is_integer()] == []
    other = {path: v for path, v in public.items() if path not in figures}
    assert other.keys() <= whole.keys()
    assert [
        (path, v) for path, v in other.items() if abs(v - whole[path]) > coarseness(path, whole[path])
    ] == []
    assert len(public) > 100


def test_what_is_held_to_less_is_listed_with_its_reason_and_nothing_else_is_listed(
    reports: dict[str, Reported],
) -> None:
    needed = set().union(*(report.claims().limits for report in reports.values()))
    assert needed == set(LIMITED)


def test_the_runs_have_what_a_report_can_have(reports: dict[str, Reported]) -> None:
    ran = {line["cell"] for report in reports.values() for line in report.document["matrix"]}
    assert {"server/analytic", "server/dlg", "server/label-updates", "world/loss-threshold"} <= ran
    finite = [e for e in reports["bounded"].document["result"]["ledger"] if e["epsilon"] is not None]
    assert len(finite) == 3
    powers = [c["power"] for c in reports["bounded"].document["result"]["checks"]]
    assert max(p for p in powers if p is not None) > 1


# -- that the comparison can fail ---------------------------------------------------------------------------------

CATEGORIES = {
    "leaking": (
        "timings/federation", "result/run/rounds", "result/run/messages", "result/run/parameters",
        "result/run/spec/splits/auxiliary", "result/class_table/1/2", "result/utility/curve/1/accuracy",
        "result/utility/curve/1/macro_f1", "result/utility/final/0/figure/value", "result/utility/final/0/figure/low",
        "result/utility/final/2/figure/value", r"result/exposure/\d+/count", r"result/exposure/\d+/bytes",
        r"result/wire/\d+/bytes", r"result/cells/\d+/params/restarts", r"result/cells/\d+/queries/spent",
        r"result/cells/\d+/queries/budget", r"result/cells/\d+/targets/\d+/messages/1",
        r"result/cells/\d+/targets/\d+/images/\d+/psnr", r"result/cells/\d+/targets/\d+/images/\d+/ssim",
        r"result/cells/\d+/targets/\d+/images/\d+/prior_psnr", r"result/cells/\d+/targets/\d+/images/\d+/true_label",
        r"result/cells/\d+/targets/\d+/images/\d+/guessed_label", r"result/cells/\d+/targets/\d+/roc/tpr/3",
        r"result/cells/\d+/targets/\d+/roc/fpr/5", r"result/cells/\d+/targets/\d+/shares/truth/4",
        r"result/cells/\d+/targets/\d+/shares/prior/4", r"result/cells/\d+/targets/\d+/shares/guess/4",
        r"result/cells/\d+/controls/positive/figures/0/value", r"result/gates/\d+/value",
        r"result/gates/\d+/threshold", r"result/family/adjusted/\d+/p", r"result/family/adjusted/\d+/floor",
        "result/family/level", "result/family/by_coins/floor", "result/family/by_coins/statistics",
        r"matrix/\d+/mean", r"matrix/\d+/worst", r"matrix/\d+/baseline",
        r"matrix/\d+/worst_record/value", r"result/judgement/views/\d+/severity/impact",
        r"result/judgement/views/\d+/severity/access", r"result/judgement/views/\d+/severity/strength"
    ),
    "bounded": (
        r"result/ledger/0/epsilon", r"result/ledger/0/delta", r"result/ledger/0/contributions/0/charges",
        r"result/ledger/0/contributions/0/epsilon", r"result/checks/0/claimed", r"result/checks/0/confidence",
        r"result/checks/0/needed", r"result/checks/0/bound", r"result/checks/0/power",
        r"result/checks/0/evidence/0/power", r"result/checks/0/evidence/1/bound",
        r"result/checks/0/evidence/1/coins", r"result/class_table/0/3", r"result/utility/curve/0/accuracy"
    ),
}  # fmt: skip
"""Paths of one number of each kind; of those that a pattern fits, the last."""


def _differently(value: float) -> float:
    """Another number, by what a reader would notice: a whole one by one, a fraction by two points, the rest by 3 %."""
    if value == int(value):
        return value + 1
    return value + 0.02 if abs(value) < 1 else value * 1.03


def _named(report: Reported, path: tuple[str | int, ...]) -> bool:
    """Whether the number at a path is named once it is another."""
    changed = copy.deepcopy(report.document)
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = _differently(place[path[-1]])
    found = differences(changed, report.claims(changed))
    return any(line.startswith(f"{text_of(path)}: ") for line in found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["leaking", "bounded"])
def test_an_altered_number_of_any_kind_is_named(reports: dict[str, Reported], name: str) -> None:
    report, missed = reports[name], []
    paths = [path for path, _ in leaves(report.document)]
    for pattern in CATEGORIES[name]:
        path = [p for p in paths if re.fullmatch(pattern, text_of(p))][-1]
        if not _named(report, path):
            missed.append(text_of(path))
    assert not missed


@pytest.mark.thorough
def test_an_altered_part_of_any_figure_is_named(reports: dict[str, Reported]) -> None:
    """Of every name of a figure, of one victim and of all: value, both ends, n, level and p-value."""
    report, missed, tried = reports["leaking"], [], set()
    for place, cell in enumerate(report.document["result"]["cells"]):
        for path, value in list(leaves(cell["figures"], ("figures",))) + list(
            leaves(cell["targets"], ("targets",))
        ):
            if path[-3] != "figures" and path[0] != "figures":
                continue
            holder = cell
            for part in path[:-1]:
                holder = holder[part]
            kind = (holder["name"], path[0], path[-1])
            if kind not in tried:
                tried.add(kind)
                if not _figure_named(report, place, path, holder, value):
                    missed.append(f"{text_of(path)} of {cell['id']}: {holder['name']}")
    assert not missed
    assert len(tried) > 150


def _figure_named(
    report: Reported, place: int, path: tuple[str | int, ...], figure: dict[str, Any], value: float
) -> bool:
    """Whether a figure with one part altered is found by the claims about its cell, made anew."""
    name, claims = str(path[-1]), Claims()
    changed = _differently(value)
    figure[name] = changed
    try:
        claim_cell(claims, report.evidence, place, report.document["result"]["cells"][place])
    finally:
        figure[name] = int(value) if name == "n" else value
    made = claims.made[("result", "cells", place, *path)]
    return any(not claim.low <= changed <= claim.high for claim in made)


def test_numbers_that_are_new_gone_or_misquoted_are_named(reports: dict[str, Reported]) -> None:
    report = reports["leaking"]
    more = copy.deepcopy(report.document)
    more["result"]["run"]["new"] = 3
    assert any(line.startswith("result/run/new: 3.0 ") for line in differences(more, report.claims(more)))
    less = copy.deepcopy(report.document)
    less["result"]["utility"]["final"][0]["figure"]["high"] = None
    gone = "result/utility/final/0/figure/high: is recomputed, but no number stands there"
    assert gone in differences(less, report.claims(less))
    misquoted = copy.deepcopy(report.document)
    finding = next(f for f in misquoted["findings"] if f["cell"] == "world/loss-threshold")
    finding["measured"] = finding["measured"].replace("AUC 0.", "AUC 0.9", 1)
    assert any(
        line.startswith("findings/world/loss-threshold")
        for line in differences(misquoted, report.claims(misquoted))
    )


# -- that it stands alone -----------------------------------------------------------------------------------------


def test_nothing_here_is_the_report_s_own_code() -> None:
    """Of fdaudit only its top is imported, which makes runs and reports; of the tests only what stands here."""
    files = sorted(Path(__file__).parent.glob("*recompute*.py"))
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                ours = [alias.name for alias in node.names if alias.name.split(".")[0] == "fdaudit"]
                assert ours in ([], ["fdaudit"]), file
                assert not ours or file.name == "test_recompute.py", file
            if isinstance(node, ast.ImportFrom):
                inside = [node.module] if node.module else [alias.name for alias in node.names]
                assert node.level == 0 or all(str(n).startswith("recompute") for n in inside), file
                assert node.level > 0 or str(node.module).split(".")[0] not in (
                    "fdaudit",
                    "importlib",
                    "tests",
                ), file
    assert len(files) == 10


def test_the_bootstrap_here_is_scipy_s() -> None:
    """Both ends of BCa without the expansion, from 20,000 resamples each: within three hundredths of the width."""
    values = np.random.default_rng(5).exponential(size=40)
    counts = drawn(len(values), np.random.default_rng(7), 20_000)
    mine = bca(mean_of(values.tolist()), counts, expand=False)
    known = stats.bootstrap((values,), np.mean, n_resamples=20_000, random_state=np.random.default_rng(6))
    width = known.confidence_interval.high - known.confidence_interval.low
    assert mine == pytest.approx(tuple(known.confidence_interval), abs=0.03 * width)
