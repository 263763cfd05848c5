"""The honest twin: same records, same attacks, both runs' figures side by side, and what receivers could notice."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fdaudit.deviations.imprint import Imprint
from fdaudit.reports.goals import RULES
from fdaudit.reports.public import public
from fdaudit.reports.run.summary import summarise
from fdaudit.reports.twin import HOW_TO_MAKE, alarm_words, gain_words, twin_summary

import fdaudit.audit.pipeline
from fdaudit import api
from fdaudit.audit.run import Run
from fdaudit.audit.summary import conclude
from fdaudit.cli.app import _beside
from fdaudit.errors import RunError
from fdaudit.result import Gain, Noticed, Result, Twin
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import DEVIATION
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages
from fdaudit.twin import make_twin
from fdaudit.twin.gains import _verdict
from fdaudit.types import Figure

from ..helpers.command import Cli
from ..helpers.refusals import refused
from ..helpers.report_cases import figures_in
from ..helpers.run_cases import tree, write_spec

ACTIVE = small_spec(
    protocol={"name": "fedavg", "params": {"rounds": 9, "batch_size": 4, "upload": "gradient"}},
    model={"name": "mlp", "params": {"widths": [32]}},
    splits={"test": 0.2, "proxy": 0.0, "auxiliary": 0.2, "candidates": 4},
    clients=3,
    victims=2,
    attacks=[{"name": "analytic"}],
    deviations=[{"party": "server", "name": "imprint", "params": {"rounds": [4]}}],
)
"""Gradients of four records each, one of them under an imprint."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("twin")
    run = api.run(ACTIVE, folder / "run")
    make_twin(run, folder / "twin")
    return run, api.load(folder / "twin")


def twin_of(run: Run) -> Twin:
    twin = run.result.twin
    assert twin is not None
    return twin


def test_a_twin_has_the_same_records_and_secret_and_nobody_deviates(pair: tuple[Run, Run]) -> None:
    active, honest = (run.case for run in pair)
    assert honest.secrets == active.secrets
    assert torch.equal(honest.dataset.x, active.dataset.x)
    assert str(honest.splits.to_dict()) == str(active.splits.to_dict())
    assert honest.deviants == {}
    assert twin_of(pair[0]).head == pair[1].result.run.head
    assert not pair[1].result.run.departures


def test_both_transcripts_hold_the_same_until_the_first_crafted_message(pair: tuple[Run, Run]) -> None:
    folders = [run.directory / "transcript" for run in pair]
    active, honest = (list(read_messages(folder)) for folder in folders)
    first = next(m.seq for m in active if DEVIATION in m.fields)
    assert first > 0
    for seq in range(first + 1):
        same = read_payload(folders[0], active[seq]) == read_payload(folders[1], honest[seq])
        assert same == (seq < first)


def test_the_same_attacks_run_with_the_same_settings(pair: tuple[Run, Run]) -> None:
    active, honest = ([(c.id, c.params) for c in run.result.tests] for run in pair)
    assert active
    assert active == honest


def test_figures_of_both_runs_stand_side_by_side(pair: tuple[Run, Run]) -> None:
    active, honest = (run.result.tests[0] for run in pair)
    rows = {gain.victim: gain for gain in twin_of(pair[0]).gains}
    assert list(rows) == ["", "client/0", "client/1"]
    for target, twin in zip(active.targets, honest.targets, strict=True):
        assert rows[target.target].figure in target.figures
        assert rows[target.target].honest_figure in twin.figures
    assert rows[""].figure in active.figures
    assert rows[""].honest_figure in honest.figures
    assert rows[""].figure != rows[""].honest_figure


def test_utility_is_that_of_both_runs(pair: tuple[Run, Run]) -> None:
    twin = twin_of(pair[0])
    for figure, run in ((twin.utility, pair[0]), (twin.honest_utility, pair[1])):
        (final,) = [f.figure for f in run.result.utility.final if f.party == "server"]
        assert figure == final


def test_an_imprint_is_noticed_by_equal_rows_and_honest_rounds_are_not(pair: tuple[Run, Run]) -> None:
    by_name = {one.detector: one for one in twin_of(pair[0]).noticed}
    rows = by_name["equal-rows"]
    assert (rows.caught, rows.of_crafted) == (1, 1)
    assert (rows.alarms, rows.of_honest, rows.learnt_on) == (0, 5, 5)
    assert by_name["change"].of_crafted == 1


def test_a_mark_alone_is_noticed_by_no_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends the honest model, which the record marks as crafted."""
    monkeypatch.setattr(Imprint, "crafted", lambda self, model, turn, generator: {})
    run = api.run(ACTIVE | {"attacks": []}, tmp_path / "run")
    assert run.result.run.departures[0].messages == 1
    twin = make_twin(run, tmp_path / "twin")
    (rows,) = [one for one in twin.noticed if one.detector == "equal-rows"]
    assert rows.threshold is not None
    assert rows.caught == 0
    assert twin.utility == twin.honest_utility


def test_the_printed_command_makes_the_same_twin(pair: tuple[Run, Run], tmp_path: Path) -> None:
    words = twin_of(pair[0]).command.split()
    assert words[:2] == ["fdaudit", "run"]
    again = api.run(Path(words[2]), tmp_path / "again", seed_from=Path(words[4]))
    assert again.result.run.head == twin_of(pair[0]).head
    assert again.result.cells == pair[1].result.cells


# -- what is shown ---------------------------------------------------------------------------------------------


def test_page_console_and_json_show_both(pair: tuple[Run, Run], cli: Cli) -> None:
    run, honest = pair
    code, words, _ = cli("twin", run.directory, "--out", honest.directory)
    assert code == 0
    summary = twin_summary(run.result)
    assert summary is not None
    assert summary.alarms
    for line in (summary.headline, *summary.alarms):
        assert line.replace("\xa0", " ") in words
    page = run.page.read_text(encoding="utf-8")
    for row in summary.rows:
        assert row.honest in page
        assert row.active in page
    told = json.loads(run.page.with_suffix(".json").read_text(encoding="utf-8"))["result"]["twin"]
    assert told == twin_of(run).plain()
    code, words, _ = cli("twin", run.directory, "--out", honest.directory, "--json")
    assert (code, json.loads(words)) == (0, told)


def test_a_public_page_has_utility_alone_in_whole_per_cents(pair: tuple[Run, Run]) -> None:
    shown = public(pair[0].result)
    twin = shown.twin
    assert twin is not None
    assert (twin.gains, twin.noticed, twin.command, twin.head) == ((), (), "", "")
    for figure in (twin.utility, twin.honest_utility):
        assert figure is not None
        assert figure.value is not None
        assert round(figure.value, 2) == figure.value
        assert figure.low is None
    summary = twin_summary(shown)
    assert summary is not None
    shown_twice = [f"{figure.value:.1%}"[:-1] for figure in (twin.honest_utility, twin.utility)]
    assert figures_in(summary.headline) == shown_twice


def test_a_deviating_run_says_how_to_make_its_twin(pair: tuple[Run, Run]) -> None:
    with_twin = pair[0].result
    without = with_twin.model_copy(update={"twin": None})
    assert HOW_TO_MAKE in summarise(without).front.untested
    assert HOW_TO_MAKE not in summarise(with_twin).front.untested
    assert HOW_TO_MAKE not in summarise(pair[1].result).front.untested


# -- what is claimed -------------------------------------------------------------------------------------------


def figure(low: float, high: float, name: str = "psnr_gain") -> Figure:
    return Figure(name=name, value=(low + high) / 2, low=low, high=high, unit="dB")


@pytest.mark.parametrize(
    ("goal", "levels", "active", "honest", "expected"),
    [
        ("reconstruction", ("leak", "leak"), figure(5, 9), figure(1, 4), "gain"),
        ("reconstruction", ("leak", "leak"), figure(4, 9), figure(1, 4), "none"),
        ("reconstruction", ("leak", "leak"), figure(1, 2), figure(3, 4), "less"),
        ("label-distribution", ("leak", "leak"), figure(0.1, 0.2), figure(0.3, 0.4), "gain"),
        ("label-distribution", ("leak", "leak"), figure(0.3, 0.4), figure(0.1, 0.2), "less"),
        ("reconstruction", ("leak", "leak"), figure(5, 9), None, "no-figure"),
        ("reconstruction", ("leak", "leak"), Figure(name="psnr_gain", value=9.0), figure(1, 4), "no-figure"),
        ("reconstruction", ("leak", "inconclusive"), figure(5, 9), figure(1, 4), "no-figure"),
        ("reconstruction", ("leak", "not-applicable"), figure(5, 9), None, "only-active"),
        ("reconstruction", ("none-seen", "not-applicable"), figure(-1, 1), None, "no-figure"),
    ],
)
def test_a_gain_is_claimed_only_where_intervals_part(
    goal: str, levels: tuple[str, str], active: Figure | None, honest: Figure | None, expected: str
) -> None:
    findings: list[Any] = [SimpleNamespace(level=level, affected=("client/0",)) for level in levels]
    assert _verdict(RULES[goal], findings[0], findings[1], "", active, honest) == expected


def gain(verdict: Any, victim: str = "", adversary: str = "server") -> Gain:
    return Gain(
        adversary=adversary,
        goal="reconstruction",
        victim=victim,
        attack="analytic",
        level="leak",
        figure=figure(5, 9),
        honest_attack="analytic",
        honest_level="none-seen",
        honest_figure=figure(-1, 1),
        verdict=verdict,
    )


def headline(result: Result, **changes: Any) -> str:
    summary = twin_summary(result.model_copy(update={"twin": Twin(**changes)}))
    assert summary is not None
    return summary.headline


def accuracy(value: float) -> Figure:
    return Figure(name="accuracy", value=value, unit="fraction", low=value - 0.02, high=value + 0.02)


def test_the_headline_claims_no_more_than_the_rows(pair: tuple[Run, Run]) -> None:
    result = pair[0].result
    assert "no gain" in headline(result, gains=(gain("none"),))
    for gains in ((gain("gain"),), (gain("none"), gain("gain", victim="client/1"))):
        assert "for reconstruction by" in headline(result, gains=gains)
    several = tuple(gain("gain", adversary=f"client/{n}") for n in range(3))
    assert "3 of 4" in headline(result, gains=(gain("none"), *several))
    for utility, words, figures in (
        (0.85, ": a cost", ["85.0", "83.0", "87.0"]),
        (0.88, ": no cost", ["88.0", "86.0", "90.0"]),
    ):
        said = headline(result, utility=accuracy(utility), honest_utility=accuracy(0.9))
        assert words in said
        assert figures_in(said) == ["90.0", "88.0", "92.0", *figures]


def test_a_detector_is_told_with_its_false_alarms_or_with_the_reason_why_it_has_no_rate() -> None:
    one = Noticed(
        party="server",
        deviation="imprint",
        kind="model_parameters",
        detector="change",
        learnt_on=5,
        threshold=1.0,
        alarms=2,
        of_honest=6,
        caught=3,
        of_crafted=4,
    )
    assert alarm_words(one).startswith("`change` on model_parameters")
    assert figures_in(alarm_words(one)) == ["3", "4", "2", "6", "5"]
    silent = one.model_copy(update={"threshold": None, "reason": "it has too few"})
    assert silent.reason in alarm_words(silent)
    assert figures_in(alarm_words(silent)) == []
    assert "no gain shown" in gain_words(gain("none"))


# -- what is refused, and what an interrupt leaves ---------------------------------------------------------------


def test_a_run_without_deviations_is_refused(pair: tuple[Run, Run], tmp_path: Path, cli: Cli) -> None:
    before = tree(pair[1].directory)
    code, out, told = cli("twin", pair[1].directory, "--out", tmp_path / "twin")
    assert (code, out) == (2, "")
    assert "has no deviations" in told
    assert len(told.strip().splitlines()) == 1
    assert tree(pair[1].directory) == before
    spec = write_spec(tmp_path / "spec.yaml", small_spec())
    code, _, told = cli("run", spec, "--out", tmp_path / "run", "--twin")
    assert code == 2
    assert "has no deviations" in told
    assert not (tmp_path / "run").exists()


def test_a_directory_in_the_run_or_of_another_run_is_refused(pair: tuple[Run, Run], tmp_path: Path) -> None:
    run, _ = pair
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for out, said in ((run.directory / "twin", "in the run"), (tmp_path / "other", "not a run")):
        refused(lambda out=out: make_twin(run, out), "out", str(out), said=said, kind=RunError)


def test_an_interrupted_twin_leaves_the_run_whole_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = api.run(ACTIVE, tmp_path / "run")
    before = tree(run.directory)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fdaudit.audit.pipeline, "attacked", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_twin(run, tmp_path / "twin")
    assert tree(run.directory) == before
    assert api.load(run.directory).result.twin is None
    head = json.loads((tmp_path / "twin" / "manifest.json").read_text())["head"]
    assert make_twin(run, tmp_path / "twin").head == head
    assert api.load(run.directory).result.twin is not None


def test_a_damaged_comparison_is_refused_with_the_way_to_make_it_again(pair: tuple[Run, Run]) -> None:
    run, _ = pair
    kept = run.opened.vault.directory / "twin.json"
    whole = kept.read_bytes()
    try:
        for damaged in (b"{}", b'{"twin": [{"gains": 1}]}', b"no JSON"):
            kept.write_bytes(damaged)
            with pytest.raises(RunError, match="fdaudit twin RUN"):
                conclude(run.opened)
    finally:
        kept.write_bytes(whole)
    assert conclude(run.opened).twin == twin_of(run)


def test_a_run_may_be_given_as_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run")
    assert _beside(Run(Path()), "twin") == tmp_path / "run-twin"
    assert _beside(Run(Path("../run")), "twin") == Path("../run-twin")
    monkeypatch.chdir(tmp_path / "run" / "below")
    assert _beside(Run(Path("..")), "twin") == tmp_path / "run-twin"


def test_run_makes_the_twin_with_the_flag(tmp_path: Path, cli: Cli) -> None:
    spec = write_spec(tmp_path / "spec.yaml", ACTIVE | {"attacks": []})
    code, words, _ = cli("run", spec, "--out", tmp_path / "run", "--twin")
    assert code == 0
    assert load_spec(tmp_path / "run-twin" / "spec.yaml").deviations == ()
    summary = twin_summary(api.load(tmp_path / "run").result)
    assert summary is not None
    assert summary.rows == ()
    assert "gain" not in summary.headline
    assert summary.headline.replace("\xa0", " ") in words
    assert summary.headline.partition(".")[0] in (tmp_path / "run" / "report" / "index.html").read_text()
