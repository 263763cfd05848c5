"""Images of any shape: a figure that cannot be had never fails a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

import fdaudit
from fdaudit.errors import DataError
from fdaudit.evaluation.stage import Stage
from fdaudit.planning.attacks import plan_attack
from fdaudit.testing import RecordedFederation

SHAPES = [(1, 1, 1), (3, 1, 7)]
MORE = [(1, 2, 3), (2, 1, 1), (1, 5, 5), (2, 5, 5), (4, 5, 5), (3, 8, 4)]


@pytest.mark.parametrize(
    "shape", [*SHAPES, *(pytest.param(shape, marks=pytest.mark.thorough) for shape in MORE)], ids=str
)
def test_records_of_any_shape_are_attacked_and_scored(shape: tuple[int, int, int], tmp_path: Path) -> None:
    federation = RecordedFederation(
        kind="gradient", records=4, pairs=0, shape=shape, steps=1, shared=12, rounds=1
    )
    run = federation.run(tmp_path)
    stage = Stage(run.opened)
    plan = plan_attack("analytic", {}, run.case.spec, "attack", ("server",))
    with stage.adversary("server") as adversary:
        guesses = stage.guesses(adversary, plan)
    figures, targets = run.opened.scorer.score("server/analytic", guesses)
    by_name = {figure.name.removesuffix("_mean"): figure for figure in figures}
    assert by_name["psnr_gain"].value is not None
    for name in ("ssim", "lpips", "fid"):
        figure = by_name[name]
        assert (figure.value is None) == bool(figure.unavailable)
    assert targets
    fdaudit.report(run)


def test_more_channels_are_refused_as_the_limits_say(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5 channels .*than 4"):
        RecordedFederation(kind="gradient", records=4, pairs=0, shape=(5, 4, 4)).run(tmp_path)
