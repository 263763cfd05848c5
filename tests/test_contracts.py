"""Contracts of extensions: a class that breaks one is found by its file and line before anything runs."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fdaudit import attacks, defenses, protocols
from fdaudit.errors import SpecError
from fdaudit.registry import CARDS, METHODS, ExtensionCard, Registry

from .helpers.docs_pages import EXTRAS

_PLACE = "extra"
_TYPES = {"attacks": "Attack", "protocols": "FederatedProtocol", "defenses": "Defense"}
_ROOMS = {"attacks": attacks, "protocols": protocols, "defenses": defenses}
_NAMES = {
    "attacks": ("confidence", "Confidence"),
    "protocols": ("one-shot", "OneShot"),
    "defenses": ("sign", "Sign"),
}


def _source(room: str) -> str:
    """The example of an extension, which keeps the contract."""
    name = _NAMES[room][0].replace("-", "_")
    return (EXTRAS / "fdaudit_extras" / f"{name}.py").read_text(encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop(_PLACE, None)


def _registry(site: Path, room: str, source: str) -> Registry[object, ExtensionCard]:
    (site / f"{_PLACE}.py").write_text(source)
    name, cls = _NAMES[room]
    return Registry(f"fdaudit.{room}", {name: f"{_PLACE}:{cls}"})


def _without(source: str, attribute: str) -> str:
    """The source without a field of the card, a class attribute or a method."""
    field = rf"        {attribute}=.*?(?=\n        \w|\n    \))"
    settings = rf"    {attribute}: ClassVar.*?(?=\n    \w|\n\n)"
    method = rf"    def {attribute}\(.*?(?=\n    def |\n\n\n|\Z)"
    pattern = f"{field}|{settings}|{method}"
    changed, times = re.subn(pattern, "", source, count=1, flags=re.DOTALL)
    assert times == 1
    return changed


def _line(source: str, cls: str) -> int:
    return next(n for n, text in enumerate(source.split("\n"), 1) if re.match(rf"class {cls}\b", text))


def _refused(
    registry: Registry[object, ExtensionCard], room: str, word: str, site: Path, source: str
) -> None:
    """Both ways to a class refuse it, with what is wrong, file, line and remedy."""
    name, cls = _NAMES[room]
    for way in (registry.describe, registry.load):
        with pytest.raises(SpecError) as caught:
            way(name)
        text = str(caught.value)
        assert word in text
        assert f"{site / _PLACE}.py, line {_line(source, cls)}" in text
        assert text.endswith("Correct the class, or uninstall its package.")
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("room", _ROOMS)
def test_the_examples_keep_their_contracts(room: str, site: Path) -> None:
    registry, name = _registry(site, room, _source(room)), _NAMES[room][0]
    assert registry.load(name).card.name == registry.describe(name).name == name  # type: ignore[attr-defined]


def _required(room: str) -> tuple[str, ...]:
    return tuple(CARDS[f"fdaudit.{room}"][0].required())


_MEMBERS = [
    (room, member)
    for room in _ROOMS
    for member in (*_required(room), "Config", *METHODS[f"fdaudit.{room}"])
    if member != "__init__"
]


@pytest.mark.parametrize(("room", "member"), _MEMBERS)
def test_a_missing_member_is_named(room: str, member: str, site: Path) -> None:
    source = _without(_source(room), member)
    method = "method " * (member in METHODS[f"fdaudit.{room}"])
    _refused(_registry(site, room, source), room, f"has no {method}{member}", site, source)


@pytest.mark.parametrize(("room", "member"), [(r, m) for r in _ROOMS for m in _required(r)])
def test_an_attribute_of_a_wrong_type_is_named(room: str, member: str, site: Path) -> None:
    literal = _without(_source(room), member).replace("Card(\n", f"Card(\n        {member}=7,\n", 1)
    _refused(_registry(site, room, literal), room, f"has {member} 7, which is not", site, literal)


@pytest.mark.parametrize("room", _ROOMS)
@pytest.mark.parametrize(
    ("stated", "word"),
    [
        ("", "has no card, which is {card}(name=…, …)"),
        ("card = made()", "computes card, which must be {card}(name=…, …) with plain literals"),
        ("card = {card}(**FIELDS)", "computes card, which must be"),
        ('card = {card}("text")', "computes card, which must be"),
        ("card = {other}(name='x')", "has a card of another kind, {other}, where {card}(name=…, …) belongs"),
        ("card = 7", "computes card, which must be"),
    ],
)
def test_a_card_that_is_missing_or_no_call_of_literals_is_named(
    room: str, stated: str, word: str, site: Path
) -> None:
    card = CARDS[f"fdaudit.{room}"][0].__name__
    other = "AttackCard" if room == "protocols" else "ProtocolCard"
    written = stated.format(card=card, other=other)
    source = re.sub(r"card = \w+Card\(.*?\n    \)", written, _source(room), count=1, flags=re.DOTALL)
    assert source != _source(room)
    _refused(_registry(site, room, source), room, word.format(card=card, other=other), site, source)


@pytest.mark.parametrize("room", _ROOMS)
def test_an_unknown_or_computed_field_of_a_card_is_named(room: str, site: Path) -> None:
    for field, word in (
        ('pagee="x"', "has the unknown field 'pagee' in its card. Did you mean 'page'?"),
        ("page=made()", "computes page, which must be a plain literal"),
    ):
        source = _source(room).replace("Card(\n", f"Card(\n        {field},\n", 1)
        with pytest.raises(SpecError) as caught:
            _registry(site, room, source).load(_NAMES[room][0])
        told = f"{caught.value.problem}. {caught.value.remedy}"
        assert all(part in told for part in word.split(". "))
        assert _PLACE not in sys.modules


def test_a_card_that_changes_when_the_class_loads_is_refused(site: Path) -> None:
    changed = "\nfrom dataclasses import replace\nConfidence.card = replace(Confidence.card, assumes=('initial',))\n"
    registry = _registry(site, "attacks", _source("attacks") + changed)
    assert registry.describe("confidence").assumes == ()
    with pytest.raises(SpecError, match=r"^attacks\.confidence: .* another card"):
        registry.load("confidence")


@pytest.mark.parametrize(("room", "method"), [(r, m) for r in _ROOMS for m in METHODS[f"fdaudit.{r}"]])
def test_a_method_of_other_arguments_is_named(room: str, method: str, site: Path) -> None:
    source = _source(room).replace(
        f"def {method}(", f"def {method}(one, two, three, four, five, six, *, of, ", 1
    )
    source = re.sub(rf"(def {method}\(one[^)]*?of, ).*?\) ->", r"\1) ->", source, count=1, flags=re.DOTALL)
    _refused(
        _registry(site, room, source), room, f"has a method {method} that is not called as", site, source
    )


FROM_A_CLIENT = '"model_parameters", "from": "client"'


@pytest.mark.parametrize(
    ("room", "old", "new", "word"),
    [
        ("attacks", '"membership"', '"mischief"', "unknown goal 'mischief'"),
        ("attacks", '"standard": {}, ', "", "no settings in profiles for standard"),
        ("attacks", 'name="confidence"', 'name="other"', "calls itself 'other'"),
        ("attacks", "assumes=(),", 'assumes=(), control={"images": 3},', "a control that does not say on"),
        ("defenses", 'name="sign"', 'name="sign", at="rest"', "acts at 'rest'"),
        ("attacks", '("oracle (soft labels)",)', '("oracle (soft labels)")', "which is not a tuple of texts"),
        ("protocols", f'"kind": {FROM_A_CLIENT}', '"from": "client"', "messages without kind"),
        ("protocols", FROM_A_CLIENT, '"gossip", "from": "client"', "unknown kind 'gossip'"),
        ("protocols", '"available_to": ("world",), ', "", "oracles without available_to"),
    ],
)
def test_a_word_that_means_nothing_is_named(room: str, old: str, new: str, word: str, site: Path) -> None:
    source = _source(room).replace(old, new, 1)
    assert source != _source(room)
    _refused(_registry(site, room, source), room, word, site, source)


@pytest.mark.parametrize("settings", ["dict", "3"])
def test_settings_of_a_strange_type_are_found_when_the_class_loads(settings: str, site: Path) -> None:
    source = re.sub(r"Config: ClassVar.*", f"Config = {settings}", _source("attacks"))
    with pytest.raises(SpecError, match=r"^attacks\.confidence: .*fdaudit\.config\.Config"):
        _registry(site, "attacks", source).load("confidence")


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_class_inherits_from_another_file_counts(site: Path, whole: bool) -> None:
    source = _without(_source("attacks"), "run").replace("class Confidence:", "class Confidence(Base):")
    base = f"base_of_it_{whole}".lower()
    method = "def run(self, view, knowledge, task, generator):\n        return ()" if whole else "pass"
    (site / f"{base}.py").write_text(f"class Base:\n    {method}\n")
    registry = _registry(
        site, "attacks", source.replace("import torch\n", f"import torch\nfrom {base} import Base\n")
    )
    for way in (registry.describe, registry.load):
        if whole:
            way("confidence")
            continue
        with pytest.raises(SpecError, match="no method run"):
            way("confidence")


@pytest.mark.parametrize("source", ["", "class Other:\n    pass\n", "class Confidence(:\n"])
def test_a_class_that_is_not_there_is_named(source: str, site: Path) -> None:
    registry = _registry(site, "attacks", source)
    for way in (registry.describe, registry.load):
        with pytest.raises(SpecError, match=r"^attacks\.confidence: 'extra:Confidence' cannot"):
            way("confidence")


@pytest.mark.parametrize("room", _ROOMS)
def test_a_room_exports_its_contract_and_the_checks_follow_it(room: str) -> None:
    module: ModuleType = _ROOMS[room]
    contract = getattr(module, _TYPES[room])
    assert {"card", "Config"} <= set(inspect.get_annotations(contract))
    for method, arguments in METHODS[f"fdaudit.{room}"].items():
        assert tuple(inspect.signature(getattr(contract, method)).parameters)[1:] == arguments


def _command(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from fdaudit.cli.app import main; main()", *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=300, env=paths, cwd=site)


def _installed(site: Path, source: str) -> None:
    (site / f"{_PLACE}.py").write_text(source)
    info = site / "extra-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[fdaudit.attacks]\nconfidence = {_PLACE}:Confidence\n")


_SPEC = {
    "clients": 2,
    "profile": "quick",
    "dataset": {"name": "digits", "limit": 240},
    "model": {"name": "mlp", "params": {"widths": [8]}},
    "protocol": {"name": "fedavg", "params": {"rounds": 1}},
    "attacks": [{"name": "confidence"}],
}


@pytest.mark.thorough
@pytest.mark.parametrize("inherits", [False, True])
def test_every_command_refuses_a_broken_attack_and_no_run_directory_is_left(
    inherits: bool, tmp_path: Path
) -> None:
    source = _without(_source("attacks"), "run")
    if inherits:
        (tmp_path / "base_of_it.py").write_text("class Base:\n    pass\n")
        source = source.replace("import torch\n", "import torch\nfrom base_of_it import Base\n")
        source = source.replace("class Confidence:", "class Confidence(Base):")
    _installed(tmp_path, source)
    (tmp_path / "spec.yaml").write_text(json.dumps(_SPEC))
    commands = [["run", "spec.yaml", "--out", "out"]]
    if not inherits:
        commands += [["list"], ["explain", "confidence"]]
    for words in commands:
        done = _command(tmp_path, *words)
        assert done.returncode == 2, done.stderr
        told = " ".join(done.stderr.split())
        assert "attacks.confidence: 'extra:Confidence'" in told
        assert "no method run" in told
        assert "Traceback" not in told
    assert not (tmp_path / "out").exists()
