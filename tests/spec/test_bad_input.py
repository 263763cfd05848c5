"""Acceptance: a mistake in a spec is one line with field, value and remedy, exit code 2, and nothing written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from fdaudit import attacks, protocols
from fdaudit.errors import SpecError
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.run_cases import cli, known, write_spec
from .mistakes import IN_SPECS

# -- one mistake a line: name, what is changed in a good spec, the field, the value, a word of the remedy ---------

MISTAKES: list[tuple[str, dict[str, Any], str, str, str]] = [
    *IN_SPECS,
    # data
    (
        "absent dataset that may not be downloaded",
        {"dataset": {"name": "mnist", "root": "{folder}/nothing"}},
        "dataset.root",
        "nothing'",
        "dataset.download: true",
    ),
    (
        "absent file",
        {"dataset": {"name": "npz:{folder}/none.npz"}},
        "dataset.name",
        "none.npz'",
        "Give a path",
    ),
    (
        "path that leaves the root",
        {"dataset": {"name": "npz:../x.npz", "root": "{folder}"}},
        "dataset.name",
        "'../x.npz'",
        "absolute",
    ),
    (
        "truncated npz",
        {"dataset": {"name": "npz:{folder}/truncated.npz"}},
        "dataset.name",
        "truncated.npz'",
        "Fetch it again",
    ),
    (
        "pickled npz",
        {"dataset": {"name": "npz:{folder}/pickled.npz"}},
        "dataset.name",
        "pickled.npz'",
        "pickled",
    ),
    (
        "npz without labels",
        {"dataset": {"name": "npz:{folder}/unlabelled.npz"}},
        "dataset.name",
        "unlabelled.npz'",
        "Store",
    ),
    (
        "labels that do not match images",
        {"dataset": {"name": "npz:{folder}/mismatch.npz"}},
        "dataset.name",
        "mismatch.npz'",
        "one label for each image",
    ),
    (
        "NaN images",
        {"dataset": {"name": "npz:{folder}/nan.npz"}},
        "dataset.name",
        "nan.npz'",
        "Remove or repair",
    ),
    (
        "images beyond [0, 1]",
        {"dataset": {"name": "npz:{folder}/scale.npz"}},
        "dataset.name",
        "scale.npz'",
        "[0, 1]",
    ),
    (
        "one class",
        {"dataset": {"name": "npz:{folder}/oneclass.npz"}},
        "dataset.name",
        "oneclass.npz'",
        "two classes",
    ),
    ("folder without classes", {"dataset": {"name": "folder:{folder}"}}, "dataset.name", "", "sub-folder"),
    (
        "partition that leaves a client empty",
        {"clients": 60, "victims": 1},
        "partition.name",
        "'iid'",
        "fewer clients",
    ),
    (
        "partition of more classes than there are",
        {"partition": {"name": "by-class", "classes_per_client": 11}},
        "partition.classes_per_client",
        "11",
        "at most 10",
    ),
    (
        "model that does not fit the input",
        {"model": {"name": "cnn-5-5"}},
        "model.name",
        "'cnn-5-5'",
        "dataset.image_size: 16",
    ),
    (
        "module that is none",
        {"model": {"name": "import:os:getcwd"}},
        "model.name",
        "'import:os:getcwd'",
        "torch.nn.Module",
    ),
    (
        "module that leaves",
        {"model": {"name": "import:sys:exit"}},
        "model.name",
        "'import:sys:exit'",
        "torch.nn.Module",
    ),
    (
        "module that is not there",
        {"model": {"name": "import:no.such:Thing"}},
        "model.name",
        "no.such",
        "Check",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data files, each with one thing wrong."""
    home = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (80, 8, 8), dtype=np.uint8)
    labels = np.arange(80) % 4
    floats = images / 255.0

    def save(name: str, x: Any, y: Any = labels, **more: Any) -> None:
        np.savez(home / f"{name}.npz", train_images=x, train_labels=y, **more)

    save("good", images)
    data = (home / "good.npz").read_bytes()
    (home / "truncated.npz").write_bytes(data[: len(data) // 2])
    np.savez(home / "unlabelled.npz", train_images=images)
    save("mismatch", images, labels[:-1])
    floats[3, 2, 1] = np.nan
    save("nan", floats)
    save("scale", images.astype(np.float64))
    save("oneclass", images, np.zeros(80, dtype=np.int64))
    np.savez(home / "pickled.npz", train_images=np.array([{"a": 1}], dtype=object), train_labels=labels)
    return home


def filled(value: Any, folder: Path) -> Any:
    """The value with `{folder}` put in."""
    if isinstance(value, str):
        return value.replace("{folder}", str(folder))
    if isinstance(value, dict):
        return {k: filled(v, folder) for k, v in value.items()}
    return value


def refused(
    spec: dict[str, Any] | str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *out_option: object,
) -> str:
    """The one line with which a spec is refused; nothing is written anywhere."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    path = write_spec(tmp_path / "spec.yaml", spec)
    code, out, err = cli(monkeypatch, capsys, "run", path, *out_option)
    assert (code, out) == (2, ""), err
    assert err.endswith("\n")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("fdaudit: ")
    assert list(work.iterdir()) == [], "a run directory was left behind"
    return err


@pytest.mark.parametrize("out", [(), pytest.param(("--out", "run"), marks=pytest.mark.thorough)], ids=str)
@pytest.mark.parametrize(
    ("changes", "field", "value", "remedy"),
    [case[1:] for case in MISTAKES],
    ids=[case[0] for case in MISTAKES],
)
def test_a_mistake_is_one_line(
    out: tuple[str, ...],
    changes: dict[str, Any],
    field: str,
    value: str,
    remedy: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(small_spec(**filled(changes, folder)), tmp_path, monkeypatch, capsys, *out)
    assert line.startswith(f"fdaudit: {field}")
    assert value in line
    assert remedy in line


def test_there_are_many_distinct_mistakes() -> None:
    assert len({case[0] for case in MISTAKES}) == len(MISTAKES) >= 60


def test_the_good_spec_is_good(folder: Path) -> None:
    """Each mistake is the only one: without it the spec makes a case."""
    from fdaudit.planning.simulated import simulated_case

    simulated_case(load_spec(small_spec()), known(0))
    simulated_case(load_spec(small_spec(dataset={"name": f"npz:{folder / 'good.npz'}"})), known(0))


# -- the file itself --------------------------------------------------------------------------------------------

FILES: list[tuple[str, str, str]] = [
    ("syntax", "clients: [1\nname: x", "is not YAML"),
    ("tab", "dataset:\n\tname: digits", "is not YAML"),
    ("two documents", "clients: 2\n---\nclients: 3", "is not YAML"),
    ("a list", "- clients", "is not a mapping"),
    ("a word", "clients", "is not a mapping"),
    ("a key twice", "clients: 2\nclients: 3", "clients: '3' is a second value"),
    (
        "a key twice below",
        "dataset:\n  name: digits\n  name: mnist",
        "dataset.name: 'mnist' is a second value",
    ),
    ("code", "name: !!python/object/apply:os.getcwd []", "is not YAML"),
    ("a month 13", "name: 2020-13-01", "is not YAML"),
    ("a number of 5,000 digits", "clients: " + "1" * 5000, "is not YAML"),
    ("a number that is none", "clients: !!int many", "is not YAML"),
    ("a time that is none", "name: !!timestamp soon", "is not YAML"),
    ("a truth that is none", "name: !!bool maybe", "is not YAML"),
    ("a key that is a list", "? [a]\n: 1", "is not YAML"),
    ("nested without end", "a: " + "[" * 600, "is nested more than 64 deep"),
    ("half a character", 'name: "\\ud800"', "is not YAML"),
    ("an alias of itself", "a: &a [*a]", "holds more than 100,000 values"),
    (
        "a billion laughs",
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 30)),
        "holds more than 100,000 values",
    ),
    ("a binary", "name: !!binary x", "is not YAML"),
    (
        "control characters",
        'atacks: "\\e[31mred\\nline"',
        "atacks: '\\x1b[31mred\\nline' holds the character U+001B",
    ),
    ("a name with a line break", '"ev\\nil": 1', "spec: 'ev\\nil' holds the character U+000A"),
    ("a name from right to left", '"\\u202Eevil": 1', "spec: '\\u202eevil' holds the character U+202E"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("out", [(), ("--out", "run")], ids=str)
@pytest.mark.parametrize(("text", "problem"), [f[1:] for f in FILES], ids=[f[0] for f in FILES])
def test_a_broken_file_is_one_line(
    out: tuple[str, ...],
    text: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert problem in refused(text, tmp_path, monkeypatch, capsys, *out)


def test_an_alias_that_stays_small_is_read_as_written_out(tmp_path: Path) -> None:
    """PyYAML itself writes one for a value that a program put in two places."""
    shared = {"kind": "model_update", "name": "gaussian-noise", "params": {"sigma": 1.0}}
    path = write_spec(tmp_path / "spec.yaml", small_spec(defenses=[shared, shared]))
    assert "*id001" in path.read_text()
    assert len(load_spec(path).defenses) == 2


def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for name, why in (("none.yaml", "No such file"), ("", "Is a directory"), ("latin.yaml", "not UTF-8")):
        code, out, err = cli(monkeypatch, capsys, "run", tmp_path / name, "--out", tmp_path / "run")
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert why in err
        assert repr(str(tmp_path / name)) in err
    assert not (tmp_path / "run").exists()


# -- other machines, other input ----------------------------------------------------------------------------------


def test_a_device_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    line = refused(small_spec(device="cuda:1"), tmp_path, monkeypatch, capsys, "--out", "run")
    assert line.startswith("fdaudit: device: 'cuda:1' is not there")
    assert "Set device to 'cpu'" in line


@pytest.mark.parametrize(
    ("device", "precision", "problem"),
    [
        ("cpu", "tf32", "'tf32' needs a CUDA device"),
        ("cuda", "tf32", "'tf32' needs a GPU of compute capability 8.0 or later, and cuda has 7.5"),
        ("cuda", "bfloat16", "'bfloat16' needs a GPU of compute capability 8.0 or later, and cuda has 7.5"),
    ],
)
def test_a_precision_that_the_device_does_not_have(
    device: str,
    precision: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    spec = small_spec(device=device, precision=precision)
    line = refused(spec, tmp_path, monkeypatch, capsys, "--out", "run")
    assert line.startswith(f"fdaudit: precision: {problem}")
    assert "Set precision to 'float32'" in line


@pytest.mark.parametrize(
    "values", [{"a": {1, 2}}, {"a": object()}, {"a": 1j}, {"a": b"x"}, {1: {2: Path("x")}}]
)
def test_values_that_are_not_plain_name_their_field(values: dict[Any, Any]) -> None:
    with pytest.raises(SpecError, match=r"^(a|1\.2): .* not plain data"):
        load_spec(values)


def test_a_mapping_within_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    with pytest.raises(SpecError, match="not plain data"):
        load_spec(loop)


@pytest.mark.parametrize("room", [protocols.REGISTRY, attacks.REGISTRY])
def test_every_setting_refuses_a_value_of_no_sense(room: Any) -> None:
    """Whatever a class lets a user set, an object of no type is refused by name."""
    from fdaudit.config import validate

    for name in room.names():
        config = room.load(name).Config
        for field in config.model_fields:
            with pytest.raises(SpecError) as error:
                validate(config, {field: {"no": ["sense"]}}, "here")
            assert error.value.field.startswith(f"here.{field}"), (name, field)


SUBPROCESSES: list[tuple[str, Callable[[Path], dict[str, Any] | str]]] = [
    ("clients", lambda folder: small_spec(clients="many")),
    ("dataset.name", lambda folder: small_spec(dataset={"name": f"npz:{folder / 'truncated.npz'}"})),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("field", "spec"), SUBPROCESSES, ids=[s[0] for s in SUBPROCESSES])
def test_the_installed_command_does_the_same(
    field: str, spec: Callable[[Path], dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    path = write_spec(tmp_path / "spec.yaml", spec(folder))
    done = subprocess.run(
        [sys.executable, "-m", "fdaudit", "run", str(path), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"fdaudit: {field}: ")
    assert not (tmp_path / "run").exists()


def test_a_run_s_own_spec_is_a_spec(tmp_path: Path) -> None:
    """Only its seed is a commitment, which a run takes from a vault."""
    from ..helpers.run_cases import finished

    own = yaml.safe_load((finished(tmp_path / "run") / "spec.yaml").read_text())
    assert set(own["seed"]) == {"commitment"}
    assert load_spec(tmp_path / "run" / "spec.yaml").seed is None
