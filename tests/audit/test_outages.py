"""A client that goes silent: on record, and said in the result."""

from __future__ import annotations

import json

import pytest

from fdaudit.transcript.transcript import read_messages

from ..helpers.report_cases import figures_in
from ..helpers.run_cases import finished


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    params = {"rounds": 4, "batch_size": 16, "local_steps": 1}
    folder = tmp_path_factory.mktemp("silent") / "run"
    return finished(folder, protocol__params=params, outages=[{"client": 1, "round": 1, "last": 2}])


def test_the_rounds_are_completed_without_it_and_the_record_says_so(run, cli):
    messages = list(read_messages(run / "transcript"))
    uploads = {(m.round, m.sender) for m in messages if m.kind == "model_update"}
    assert uploads == {(r, "client/0") for r in range(4)} | {(0, "client/1"), (3, "client/1")}
    silences = [(m.round, m.sender, m.receivers, m.bytes_on_wire) for m in messages if m.kind == "silence"]
    assert silences == [(1, "client/1", ("server",), 0), (2, "client/1", ("server",), 0)]
    code, _, _ = cli("verify", run)
    assert code == 0


def test_the_result_says_so(run):
    result = json.loads((run / "result.json").read_text())
    assert result["run"]["silences"] == [{"party": "client/1", "rounds": [1, 2]}]
    (line,) = (line for line in result["limits"] if line.startswith("client/1 went silent"))
    assert figures_in(line)[1:4] == ["2", "1", "2"]  # in two rounds: the first and the last


def test_a_run_without_outages_says_nothing_of_them(tmp_path):
    result = json.loads((finished(tmp_path / "run") / "result.json").read_text())
    assert result["run"]["silences"] == []
    assert not any("silent" in line for line in result["limits"])
