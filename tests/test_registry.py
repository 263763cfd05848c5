"""Registries: names without imports, and no name twice."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from fdaudit import attacks, defenses, protocols
from fdaudit.errors import FdauditError, SpecError
from fdaudit.registry import Registry

SOURCE = '''
"""A module that must not be run."""
from typing import ClassVar

class Base:
    shared: ClassVar[str] = "from the base"
    name: ClassVar[str] = "overridden"

class Thing(Base):
    """What it does.

    More of it.
    """
    name: ClassVar[str] = "thing"
    numbers: ClassVar[tuple[int, ...]] = (1, 2)
    plain = {"a": [None, True]}
    computed: ClassVar[int] = len("abc")
    annotated: int

raise RuntimeError("this module was imported")
'''


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    (tmp_path / "strange_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("fdaudit.things", {"thing": "strange_module:Thing"})


def entries(monkeypatch, *names):
    found = [SimpleNamespace(name=n, value=f"elsewhere:{n}", group="fdaudit.attacks") for n in names]
    monkeypatch.setattr(
        "fdaudit.registry.registry.entry_points", lambda group: [e for e in found if e.group == group]
    )


def test_describing_reads_docstring_and_literals_and_runs_nothing(stranger):
    found = stranger.describe("thing")
    assert found == {
        "doc": "What it does.\n\nMore of it.",
        "shared": "from the base",
        "name": "thing",
        "numbers": (1, 2),
        "plain": {"a": [None, True]},
    }
    assert "strange_module" not in sys.modules
    with pytest.raises(RuntimeError, match="was imported"):
        stranger.load("thing")


def test_listing_and_describing_everything_imports_no_torch():
    code = (
        "import sys\n"
        "from fdaudit import attacks, defenses, protocols\n"
        "rooms = [attacks.REGISTRY, defenses.REGISTRY, protocols.REGISTRY]\n"
        "cards = [r.describe(n) for r in rooms for n in r.names()]\n"
        "assert len(cards) >= 5 and all(c['doc'] for c in cards)\n"
        "assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


FAMILY = """
ASKED = {"kind": "proxy_indices", "what": "which"}
ANSWERS = ({"kind": "logits"}, {"kind": "soft_labels"})
ROUND = HERE
HERE = ROUND
"""
MEMBER = """
from family import ANSWERS as THEIRS, ASKED, ROUND, absent
from nowhere import gone
OWN = "of the member"
class Thing:
    name = "thing"
    messages = (ASKED, *THEIRS, {"kind": "release", "what": OWN})
    nested = {"a": {"b": (OWN,)}}
    unknown = (absent, OWN)
    missing = gone
    cyclic = ROUND
    unpacked = (*OWN,)
raise RuntimeError("this module was imported")
"""


def test_names_stand_for_the_literals_of_a_family(tmp_path, monkeypatch):
    """Nothing is imported; a name that is no literal leaves the attribute out, as a computed one does."""
    (tmp_path / "family.py").write_text(f"{FAMILY}raise RuntimeError('this module was imported')")
    (tmp_path / "member_of_family.py").write_text(MEMBER)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked, scores, soft = (
        {"kind": "proxy_indices", "what": "which"},
        {"kind": "logits"},
        {"kind": "soft_labels"},
    )
    assert Registry("fdaudit.things", {"thing": "member_of_family:Thing"}).describe("thing") == {
        "doc": "",
        "name": "thing",
        "messages": (asked, scores, soft, {"kind": "release", "what": "of the member"}),
        "nested": {"a": {"b": ("of the member",)}},
    }


def test_installed_packages_add_names(monkeypatch):
    entries(monkeypatch, "theirs")
    made = Registry("fdaudit.attacks", {"ours": "here:Ours"})
    assert made.names() == ["ours", "theirs"]


def test_a_name_of_another_group_is_not_added(monkeypatch):
    entries(monkeypatch, "theirs")
    assert Registry("fdaudit.protocols", {"ours": "here:Ours"}).names() == ["ours"]


@pytest.mark.parametrize("names", [("ours",), ("theirs", "theirs")])
def test_a_name_given_twice_is_an_error_that_names_both(monkeypatch, names):
    entries(monkeypatch, *names)
    made = Registry("fdaudit.attacks", {"ours": "here:Ours"})
    for ask in (made.names, lambda: made.load("ours"), lambda: made.describe("ours")):
        with pytest.raises(FdauditError, match=rf"'{names[0]}' is both .* and elsewhere:{names[0]}"):
            ask()


@pytest.mark.parametrize(("field", "shown"), [(None, "attack"), ("attacks.3.name", "attacks.3.name")])
def test_an_unknown_name_is_refused_with_the_nearest(field, shown):
    for ask in (attacks.REGISTRY.load, attacks.REGISTRY.describe):
        with pytest.raises(SpecError, match="Did you mean 'loss-threshold'") as caught:
            ask("loss-treshold", field)
        assert caught.value.field == shown


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("room", "name"),
    [(r, n) for r in (attacks, defenses, protocols) for n in r.REGISTRY.names()],
    ids=lambda v: v if isinstance(v, str) else v.__name__.rpartition(".")[2],
)
def test_every_public_name_loads_and_says_so_itself(room, name):
    cls = room.REGISTRY.load(name)
    card = room.REGISTRY.describe(name)
    assert cls.name == card["name"] == name
    assert card["doc"] == __import__("inspect").getdoc(cls)
