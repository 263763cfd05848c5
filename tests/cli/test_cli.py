"""Every command through its entry point: what it prints, its JSON, its exit code, and that no name deceives."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit import attacks, defenses, deviations, protocols
from fdaudit.cli.explain import explained
from fdaudit.names import visible

from ..helpers.cli_cases import Shell
from ..helpers.run_cases import finished, tree, write_spec

pytestmark = pytest.mark.usefixtures("forked_processes")

LOSS = {"name": "loss-threshold"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one attack: gradients, so that a reconstruction applies."""
    return finished(
        tmp_path_factory.mktemp("cli") / "run",
        name="A run",
        protocol__params={"rounds": 2, "upload": "gradient", "batch_size": 1},
        adversaries=["server", "world"],
        attacks=[LOSS],
    )


@pytest.fixture
def done(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


# -- run --------------------------------------------------------------------------------------------------------


def test_run_prints_accuracy_cells_and_where_it_lies(shell: Shell) -> None:
    code, out, err = shell("run", shell.spec(attacks=[LOSS]), "--out", "here", "--no-report", "--verbose")
    assert code == 0
    assert all(line.startswith("fdaudit: ") for line in err.splitlines()), "progress, on a slow machine"
    result = json.loads((shell.home / "here" / "result.json").read_bytes())
    lines = out.splitlines()
    accuracy = [r["figure"]["value"] for r in result["utility"]["final"] if r["party"] == "server"]
    assert lines[0].split() == ["accuracy", "fedavg", f"{accuracy[0]:.1%}"]
    assert lines[1].split()[0] == "warning"  # after three steps the model is near chance
    lines.pop(1)
    cells = [c for c in result["cells"] if c["status"] != "not-requested"]
    shown = lines[2 : 2 + len(cells)]
    for line, cell in zip(shown, cells, strict=True):
        assert line.startswith(f"{cell['adversary']} / {cell['attack']}: ")
    assert lines[-1].split() == ["run", "here"]
    assert not (shell.home / "here" / "report").exists()


def test_run_without_out_goes_below_runs_by_name_and_digest(shell: Shell) -> None:
    spec = shell.spec(name="My first: Audit!")
    assert shell("run", spec, "--no-report")[0] == 0
    (made,) = (shell.home / "runs").iterdir()
    assert made.name == f"my-first-audit-{fdaudit.load_spec(spec).digest()[:8]}"
    assert shell("run", spec, "--no-report")[0] == 2, "the same spec again finds its directory occupied"
    assert shell("run", spec, "--no-report", "--resume")[0] == 0


def test_run_json(shell: Shell) -> None:
    value = shell.json("run", shell.spec(), "--out", "here", "--no-report")
    assert value["run"] == "here"
    assert value["report"] is None
    assert value["result"] == json.loads((shell.home / "here" / "result.json").read_bytes())


def test_run_writes_a_report_unless_told_not_to(shell: Shell) -> None:
    value = shell.json("run", shell.spec(), "--out", "here")
    assert value["report"] == "here/report/index.html"
    assert (
        (shell.home / "here" / "report" / "index.html")
        .read_text(encoding="utf-8")
        .startswith("<!doctype html>")
    )


def test_run_needs_a_spec_or_a_run_to_resume(shell: Shell) -> None:
    for arguments in (("run",), ("run", "--resume"), ("run", "--out", "x")):
        assert "SPEC" in shell.refused(*arguments)
    shell.refused("run", "--resume", "--out", "nothing")
    assert not (shell.home / "nothing").exists()


def test_run_takes_the_seed_of_another_run(shell: Shell, done: Path) -> None:
    assert shell("run", done / "spec.yaml", "--out", "again", "--seed-from", done, "--no-report")[0] == 0
    assert tree(shell.home / "again") == tree(done)
    shell.refused("run", shell.spec(), "--out", "other", "--seed-from", "nothing")
    assert not (shell.home / "other").exists()


# -- gates and failures: 1 ----------------------------------------------------------------------------------------


NOISE = {"kind": "model_update", "name": "gaussian-noise", "params": {"clip": 1.0, "sigma": 5.0}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gates", "changes", "code"),
    [
        ({"epsilon": 1e9}, {"defenses": [NOISE], "withhold": ["sample_count"]}, 0),
        ({"epsilon": 1e9}, {}, 1),  # updates without noise: no ε can be claimed
        ({"membership_auc": 0.0}, {}, 1),
        ({"membership_auc": 1.0}, {}, 1),  # the attack's control fails here: its figure keeps no gate
        ({"reconstruction_gain_db": 100.0}, {}, 1),  # nothing was measured: nothing is shown to hold
    ],
)
def test_a_failing_gate_ends_with_1_and_says_which(
    gates: dict[str, float], changes: dict[str, Any], code: int, shell: Shell
) -> None:
    spec = shell.spec(attacks=[LOSS], gates=gates, **changes)
    found, out, err = shell("run", spec, "--out", "here", "--no-report", "--json")
    assert found == code
    (name,) = gates
    (gate,) = json.loads(out)["result"]["gates"]
    assert (gate["name"], gate["passed"]) == (name, code == 0)
    assert (f"gate {name} failed" in err) == (code == 1)
    assert len(err.splitlines()) == code
    assert (shell.home / "here" / "result.json").is_file(), "the result is there all the same"


@pytest.mark.usefixtures("attacks_here")
def test_a_failed_cell_ends_with_1_and_says_why(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an attack raises, its text is shown on one line."""
    from fdaudit.attacks.loss_threshold import LossThreshold

    def broken(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("no\nfdaudit: cell world/loss-threshold passed\x1b[2J")

    monkeypatch.setattr(LossThreshold, "run", broken)
    code, out, err = shell("run", shell.spec(attacks=[LOSS]), "--out", "here", "--no-report")
    assert code == 1, err
    assert len(err.splitlines()) == 1
    assert err.startswith("fdaudit: cell server/loss-threshold ")
    assert "RuntimeError: no\\n" in err
    assert "\x1b" not in out + err
    assert [line for line in out.splitlines() if line.startswith("fdaudit")] == []


def test_training_that_diverges_ends_with_1(shell: Shell) -> None:
    spec = shell.spec(protocol__params__lr=1e30, protocol__params__local_steps=5)
    code, _, err = shell("run", spec, "--out", "here", "--no-report")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "client/0" in err
    assert "learning rate" in err


def test_an_error_of_the_system_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "full", "payloads/00000000.safetensors")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = shell("run", shell.spec(), "--out", "here", "--no-report")
    assert (code, err) == (1, "fdaudit: full: payloads/00000000.safetensors\n")


# -- attack -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_attack_runs_one_cell_and_keeps_it(shell: Shell, done: Path) -> None:
    before = json.loads((done / "result.json").read_bytes())
    (cell,) = shell.json("attack", done, "analytic", "--adversary", "server")
    assert (cell["id"], cell["status"]) == ("server/analytic", "run")
    assert cell["figures"]
    after = json.loads((done / "result.json").read_bytes())
    kept = {c["id"]: c for c in after["cells"]}
    assert kept["server/analytic"] == cell
    assert {k: v for k, v in kept.items() if k != "server/analytic"} == {
        c["id"]: c for c in before["cells"] if c["id"] != "server/analytic"
    }
    assert fdaudit.load(done).verify() == []


def test_attack_prints_one_line_a_cell_and_takes_settings(shell: Shell, done: Path) -> None:
    code, out, _ = shell("attack", done, "loss-threshold", "--adversary", "world")
    assert code == 0
    (verdict,) = out.splitlines()
    assert verdict.startswith("world / loss-threshold: ")
    (cell,) = shell.json("attack", done, "loss-threshold", "--adversary", "world", "--set", "floor=0.25")
    assert cell["params"]["floor"] == 0.25


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("analitic",), "attack"),
        (("analytic", "--adversary", "servr"), "adversary"),
        (("analytic", "--adversary", "client/2"), "adversary"),
        (("analytic", "--adversary", ""), "adversary"),
        (("loss-threshold", "--set", "flor=1"), "attack.flor"),
        (("loss-threshold", "--set", "floor"), "--set"),
        (("loss-threshold", "--set", "=1"), "--set"),
        (("loss-threshold", "--set", "floor=NaN"), "attack.floor"),
        (("loss-threshold", "--set", "floor=2"), "attack.floor"),
        (("loss-threshold", "--set", "floor=low"), "attack.floor"),
        (("loss-threshold", "--all"), "ATTACK"),
        ((), "ATTACK"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, tuple) else "",
)
def test_attack_refuses_and_touches_nothing(
    arguments: tuple[str, ...], field: str, shell: Shell, done: Path
) -> None:
    before = tree(done, without=())
    assert shell.refused("attack", done, *arguments).startswith(f"fdaudit: {field}: ")
    assert tree(done, without=()) == before


def test_attack_refuses_a_changed_record_with_3(shell: Shell, done: Path) -> None:
    path = done / "transcript" / "payloads" / "round-000001.shard"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    code, out, err = shell("attack", done, "analytic")
    assert (code, out) == (3, "")
    assert path.name in err


def test_attack_all_runs_every_attack_against_the_spec_s_adversaries(shell: Shell, done: Path) -> None:
    from fdaudit import api

    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "attack_all", lambda run, tick, far, budget: asked.append(run.directory) or [])
        assert shell.json("attack", done, "--all") == []
    assert asked == [done]


# -- report, verify -----------------------------------------------------------------------------------------------


def test_report(shell: Shell, done: Path) -> None:
    assert shell("report", done) == (0, f"{done}/report/index.html\n", "")
    assert shell.json("report", done, "--out", "page.html") == {"report": "page.html", "json": "page.json"}
    page = (shell.home / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "A run" in page


def test_report_refuses(shell: Shell, done: Path) -> None:
    (shell.home / "file").write_text("x")
    (shell.home / "folder").mkdir()
    for arguments in (
        ("nothing",),
        (done, "--out", "folder"),
        (done, "--out", "file/page.html"),
        ("folder",),
    ):
        shell.refused("report", *arguments)
    assert list((shell.home / "folder").iterdir()) == []


def test_verify_ends_with_0_2_or_3(shell: Shell, done: Path) -> None:
    assert shell.json("verify", done) == {"run": str(done), "intact": True, "findings": []}
    shell.refused("verify", "nothing")
    (done / "transcript" / "stray").write_text("")
    (finding,) = shell.json("verify", done, code=3)["findings"]
    assert finding.startswith("stray ")
    assert shell("verify", done) == (3, "", f"fdaudit: {finding}\n")


# -- list, explain -------------------------------------------------------------------------------------------------


def test_list_names_everything(shell: Shell) -> None:
    rooms = {"protocols": protocols.REGISTRY, "attacks": attacks.REGISTRY, "defences": defenses.REGISTRY}
    rooms["deviations"] = deviations.REGISTRY
    value = shell.json("list")
    assert {room: sorted(names) for room, names in value.items()} == {r: g.names() for r, g in rooms.items()}
    assert all(line for names in value.values() for line in names.values())
    code, out, err = shell("list")
    assert (code, err) == (0, "")
    for names in value.values():
        for name, line in names.items():
            assert any(row.split()[:1] == [name] and row.endswith(line) for row in out.splitlines())


@pytest.mark.parametrize(
    "name", [*protocols.REGISTRY.names(), *attacks.REGISTRY.names(), *defenses.REGISTRY.names()]
)
def test_explain_says_what_a_class_declares(name: str, shell: Shell) -> None:
    value = explained(name).plain()
    code, out, err = shell("explain", name)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"{name} ({value['room']})"
    assert value["source"] in out
    for message in value.get("messages", ()):
        assert f"{message['from']} -> {message['to']}: {message['kind']}" in out
    for assumption in value.get("trust", ()):
        assert assumption in out


@pytest.mark.parametrize("name", ["fedavg", "dlg", "gaussian-noise"])
def test_explain_json_is_what_is_explained(name: str, shell: Shell) -> None:
    value = shell.json("explain", name)
    assert value["name"] == name
    assert value == json.loads(json.dumps(explained(name).plain()))


def test_explain_names_the_nearest(shell: Shell) -> None:
    assert "mean 'fedavg'?" in shell.refused("explain", "fedagv")


# -- names that would deceive -----------------------------------------------------------------------------------------

HOSTILE = "ev\x1b[31mil\r\nfdaudit: all is well\u202e\u2028\x07"


def clean(text: str) -> bool:
    """Whether a terminal does nothing but print: no control character but the newline, no direction mark."""
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    "character", ["\x1b", "\r", "\n", "\t", "\x07", "\x7f", "\x9b", "\u202e", "\u2028", "\u200f", "\ud800"]
)
def test_what_a_terminal_would_obey_is_written_out(character: str) -> None:
    shown = visible(f"a{character}b")
    assert clean(shown)
    assert "\n" not in shown
    assert shown.encode("utf-8").decode("unicode_escape") == f"a{character}b"


def test_hostile_names_are_written_out_everywhere(shell: Shell, done: Path) -> None:
    home = shell.home / HOSTILE
    run = Path(shutil.copytree(done, home))
    (run / "transcript" / HOSTILE.replace("/", "")).write_text("")
    spec = write_spec(shell.home / "hostile.yaml", {"name": HOSTILE, HOSTILE: 1})
    commands: list[tuple[object, ...]] = [
        ("verify", run),
        ("verify", shell.home / f"no{HOSTILE}"),
        ("attack", run, HOSTILE),
        ("attack", run, "analytic", "--adversary", HOSTILE),
        ("attack", run, "analytic", "--set", HOSTILE),
        ("explain", HOSTILE),
        ("run", spec),
        ("run", HOSTILE),
        ("run", shell.spec(), "--out", run),
        ("report", shell.home / f"no{HOSTILE}"),
    ]
    for command in commands:
        code, out, err = shell(*command)
        assert code in (2, 3), command
        assert clean(out + err), command
        assert not [line for line in (out + err).splitlines() if line.startswith("fdaudit: all")], command
    code, out, err = shell("run", shell.spec(name=HOSTILE), "--out", shell.home / "named")
    assert (code, out) == (2, "")
    assert clean(err)
    # A good run in a directory of that name: its name is printed, and is one line.
    code, out, err = shell("run", shell.spec(), "--out", shell.home / f"new{HOSTILE}", "--no-report")
    assert code == 0, err
    assert clean(out + err)
    assert len([line for line in out.splitlines() if line.startswith("run ")]) == 1
    assert out.splitlines()[-1].startswith("run ")
    assert shell.json("verify", shell.home / f"new{HOSTILE}")["intact"] is True
