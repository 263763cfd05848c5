"""Acceptance: a mistake in a spec is one line with field, value and remedy, exit code 2, and nothing written."""

from __future__ import annotations

import re
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
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.spec.draft import draft
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.testing.specs import small_spec

from ..helpers.command import Cli
from ..helpers.run_cases import known, write_spec
from .mistakes import IN_SPECS

Refused = Callable[..., str]

# -- one mistake a line: what is changed in a good spec, the field, the value, a word of the remedy ---------

NPZ = (
    ("none", "Give a path"),
    ("truncated", "Fetch it again"),
    ("pickled", "pickled"),
    ("unlabelled", "Store"),
    ("mismatch", "one label for each image"),
    ("nan", "Remove or repair"),
    ("scale", "[0, 1]"),
    ("oneclass", "two classes"),
)
"""Files with one thing wrong each, and a word of the remedy."""

MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    *IN_SPECS,
    # data
    (
        {"dataset": {"name": "mnist", "root": "{folder}/nothing"}},
        "dataset.root",
        "nothing'",
        "dataset.download: true",
    ),
    *(
        ({"dataset": {"name": f"npz:{{folder}}/{name}.npz"}}, "dataset.name", f"{name}.npz'", remedy)
        for name, remedy in NPZ
    ),
    ({"dataset": {"name": "npz:../x.npz", "root": "{folder}"}}, "dataset.name", "'../x.npz'", "absolute"),
    ({"dataset": {"name": "folder:{folder}"}}, "dataset.name", "", "sub-folder"),
    ({"clients": 60, "victims": 1}, "partition.name", "'iid'", "fewer clients"),
    (
        {"partition": {"name": "by-class", "classes_per_client": 11}},
        "partition.classes_per_client",
        "11",
        "at most 10",
    ),
    ({"model": {"name": "cnn-5-5"}}, "model.name", "'cnn-5-5'", "dataset.image_size: 16"),
    ({"model": {"name": "import:os:getcwd"}}, "model.name", "'import:os:getcwd'", "torch.nn.Module"),
    ({"model": {"name": "import:sys:exit"}}, "model.name", "'import:sys:exit'", "torch.nn.Module"),
    ({"model": {"name": "import:no.such:Thing"}}, "model.name", "no.such", "Check"),
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


@pytest.fixture
def refused(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Returns the one line with which a spec is refused; nothing is written anywhere."""

    def run(spec: dict[str, Any] | str, *options: object) -> str:
        work = tmp_path / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        code, out, err = cli("run", write_spec(tmp_path / "spec.yaml", spec), *options)
        assert (code, out) == (2, ""), err
        assert err.endswith("\n")
        assert len(err.splitlines()) == 1, err
        assert err.startswith("fdaudit: ")
        assert list(work.iterdir()) == [], "a run directory was left behind"
        return err

    return run


@pytest.mark.parametrize("out", [(), pytest.param(("--out", "run"), marks=pytest.mark.thorough)], ids=str)
@pytest.mark.parametrize(
    ("changes", "field", "value", "remedy"),
    MISTAKES,
    ids=[f"{field}: {value}" for _, field, value, _ in MISTAKES],
)
def test_a_mistake_is_one_line(
    out: tuple[str, ...],
    changes: dict[str, Any],
    field: str,
    value: str,
    remedy: str,
    folder: Path,
    refused: Refused,
) -> None:
    line = refused(small_spec(**filled(changes, folder)), *out)
    assert line.startswith(f"fdaudit: {field}")
    assert value in line
    assert remedy in line


def test_there_are_many_distinct_mistakes() -> None:
    assert len({str(changes) for changes, *_ in MISTAKES}) == len(MISTAKES) >= 60


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
def test_a_broken_file_is_one_line(out: tuple[str, ...], text: str, problem: str, refused: Refused) -> None:
    assert problem in refused(text, *out)


def test_an_alias_that_stays_small_is_read_as_written_out(tmp_path: Path) -> None:
    """PyYAML itself writes one for a value that a program put in two places."""
    shared = {"kind": "model_update", "name": "gaussian-noise", "params": {"sigma": 1.0}}
    path = write_spec(tmp_path / "spec.yaml", small_spec(defenses=[shared, shared]))
    assert "*id001" in path.read_text()
    assert len(load_spec(path).defenses) == 2


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for name, why in (("none.yaml", "No such file"), ("", "Is a directory"), ("latin.yaml", "not UTF-8")):
        code, out, err = cli("run", tmp_path / name, "--out", tmp_path / "run")
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert why in err
        assert repr(str(tmp_path / name)) in err
    assert not (tmp_path / "run").exists()


# -- other machines, other input ----------------------------------------------------------------------------------


def test_a_device_that_is_not_there(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    line = refused(small_spec(device="cuda:1"), "--out", "run")
    assert line.startswith("fdaudit: device: 'cuda:1'")
    assert "'cpu'" in line


@pytest.mark.parametrize(
    ("device", "precision", "problem"),
    [
        ("cpu", "tf32", "'tf32' needs a CUDA device"),
        ("cuda", "tf32", "'tf32' needs a GPU of compute capability 8.0 or later, and cuda has 7.5"),
        ("cuda", "bfloat16", "'bfloat16' needs a GPU of compute capability 8.0 or later, and cuda has 7.5"),
    ],
)
def test_a_precision_that_the_device_does_not_have(
    device: str, precision: str, problem: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    spec = small_spec(device=device, precision=precision)
    line = refused(spec, "--out", "run")
    assert line.startswith(f"fdaudit: precision: {problem}")
    assert "'float32'" in line


@pytest.mark.parametrize(
    "values", [{"a": {1, 2}}, {"a": object()}, {"a": 1j}, {"a": b"x"}, {1: {2: Path("x")}}]
)
def test_values_that_are_not_plain_name_their_field(values: dict[Any, Any]) -> None:
    with pytest.raises(SpecError, match=r"^(a|1\.2): .* plain"):
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


# -- the spec that `fdaudit init` writes ---------------------------------------------------------------------------


NAMES = protocols.REGISTRY.names()


def drafted(name: str) -> str:
    return draft(name, protocols.REGISTRY.load(name).Config)


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_is_a_spec_with_every_default_and_every_field(name: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(drafted(name), encoding="utf-8")
    found = load_spec(tmp_path / "spec.yaml")
    assert found.model_copy(update={"protocol": Spec().protocol}) == Spec()
    config = protocols.REGISTRY.load(name).Config
    assert found.protocol.name == name
    assert validate(config, found.protocol.params) == config()
    text = drafted(name)
    config = protocols.REGISTRY.load(name).Config
    for field in (*Spec.model_fields, *config.model_fields):
        assert re.search(rf"^(    )?(# )?{field}:", text, re.MULTILINE), field


def test_what_is_commented_out_is_its_default_again_without_the_sign() -> None:
    core, _, rest = drafted("fedkd").partition("# Everything else")
    left = [name for name in Spec.model_fields if f"\n{name}:" not in core]
    known = re.compile(rf"# ({'|'.join(left)}):|#   |# - ")
    given = "\n".join(line.removeprefix("# ") for line in rest.splitlines() if known.match(line))
    found = yaml.safe_load(given)
    assert list(found) == left
    for field, value in found.items():
        default = Spec().model_dump(mode="json", exclude_none=True).get(field)
        assert value == (list(Spec().deviations) if field == "deviations" else default), field
