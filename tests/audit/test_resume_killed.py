"""Acceptance: a process killed with SIGKILL at any instant, and its run resumed, ends with the same bytes."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import fdaudit
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import verify

from ..helpers import warm
from ..helpers.run_cases import tree, write_spec

LONG = small_spec(seed=12, protocol__params__rounds=30)


def command(spec: Path, out: Path, *more: object) -> list[str]:
    return ["-m", "fdaudit", "run", str(spec), "--out", str(out), "--no-report", *map(str, more)]


def killed_after(seconds: float, out: Path, arguments: list[str]) -> bool:
    """Starts a process, kills it so long after its first write with SIGKILL; False when it was done before."""
    process = warm.Started(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(out / "vault" / "secrets.json", process)
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


def wait_for(path: Path, process: warm.Started) -> None:
    """Until a path is there: how long a process takes to start depends on everything else that runs."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.005)


def left_by(out: Path, killed: bool) -> str:
    """How far a run had come, in one word or two."""
    checkpoint = out / "vault" / "round.json"
    if not killed:
        return "finished"
    if checkpoint.exists():
        return f"round {json.loads(checkpoint.read_bytes())['round']}"
    return "begun" if out.exists() else "nothing"


def compare(found: dict[str, bytes], wanted: dict[str, bytes], when: str) -> None:
    """Chain heads first, then every file."""
    head, wanted_head = (json.loads(t["manifest.json"])["head"] for t in (found, wanted))
    assert head == wanted_head, when
    assert found.keys() == wanted.keys(), when
    assert [n for n in wanted if found[n] != wanted[n]] == [], when


@pytest.mark.thorough
def test_three_kills(tmp_path: Path) -> None:
    """At random instants of the federation; the run is resumed in this process, to the same bytes."""
    spec, reference = write_spec(tmp_path / "spec.yaml", LONG), tmp_path / "reference"
    whole = fdaudit.run(spec, reference)
    draw, states = random.Random(20261), list[str]()
    for k in range(3):
        out = tmp_path / f"killed-{k}"
        instant = whole.timings["federation"] * (k + draw.random()) / 3
        begin = command(spec, out, "--seed-from", reference, "--resume")
        states.append(left_by(out, killed_after(instant, out, begin)))
        fdaudit.run(spec, out, resume=True)
        compare(tree(out), tree(reference), states[-1])
    print("killed in:", ", ".join(states))
    assert any(state.startswith(("round", "begun")) for state in states), states


@pytest.mark.slow
def test_ten_kills(tmp_path: Path) -> None:
    """At random instants spread over the measured time in which a run writes; each resumed by a new process."""
    longer = small_spec(seed=12, protocol__params__rounds=400)  # so that training takes most of that time
    spec, reference = write_spec(tmp_path / "spec.yaml", longer), tmp_path / "reference"
    process = warm.Started(command(spec, reference), stdout=subprocess.DEVNULL)
    wait_for(reference / "vault" / "secrets.json", process)
    began = time.monotonic()
    assert process.wait(300) == 0
    length = time.monotonic() - began
    assert verify(reference) == []
    draw, states = random.Random(20262), list[str]()
    for k in range(10):
        out = tmp_path / f"killed-{k}"
        resume = command(spec, out, "--seed-from", reference, "--resume")
        instant = length * (k + draw.random()) / 10  # one in each equal share
        while not killed_after(
            instant, out, resume
        ):  # it was done before: that killed nothing, so draw again
            shutil.rmtree(out)
            length = min(length, instant)
            instant = length * (k + draw.random()) / 10
        states.append(left_by(out, True))
        warm.run(resume).check_returncode()
        compare(tree(out), tree(reference), f"killed after {instant:.2f} s: {states[-1]}")
    assert len(states) == 10
    print(f"ten of ten chain heads equal; killed in: {', '.join(states)}")
    assert len({state for state in states if state.startswith("round")}) >= 4, states
