"""Registries: names without imports, and no name twice."""

from __future__ import annotations

import inspect
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from fdaudit import attacks, defenses, protocols
from fdaudit.errors import FdauditError, SpecError
from fdaudit.registry import DefenseCard, Registry, SimpleProtocolCard

from .helpers.refusals import refused

SOURCE = '''
"""A module that must not be run."""
from fdaudit.registry import DefenseCard

raise RuntimeError("this module was imported")

class Base(elsewhere.Base):
    card = DefenseCard(name="base")

class Thing(Base):
    """What it does.

    More of it.
    """
    card = DefenseCard(name="thing", source="a " "test", accepts=("logits", "soft_labels"), fixed_size=True)
'''


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    (tmp_path / "strange_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("fdaudit.defenses", {"thing": "strange_module:Thing"})


def entries(monkeypatch, *names):
    found = [SimpleNamespace(name=n, value=f"elsewhere:{n}", group="fdaudit.attacks") for n in names]
    monkeypatch.setattr(
        "fdaudit.registry.registry.entry_points", lambda group: [e for e in found if e.group == group]
    )


def test_a_described_card_is_new_and_nothing_is_run_for_it(stranger):
    stated = {"source": "a test", "accepts": ("logits", "soft_labels"), "fixed_size": True}
    assert stranger.describe("thing") == DefenseCard(name="thing", **stated)
    assert stranger.doc("thing") == "What it does.\n\nMore of it."
    assert "strange_module" not in sys.modules
    with pytest.raises(SpecError, match="was imported"):
        stranger.load("thing")
    one, other = attacks.REGISTRY.describe("dlg"), attacks.REGISTRY.describe("dlg")
    one.profiles["quick"]["restarts"] = 99
    assert other == attacks.REGISTRY.describe("dlg") != one


def test_listing_and_describing_everything_imports_no_torch():
    code = (
        "import sys\n"
        "from fdaudit import attacks, defenses, protocols\n"
        "rooms = [attacks.REGISTRY, defenses.REGISTRY, protocols.REGISTRY]\n"
        "cards = [r.describe(n) for r in rooms for n in r.names()]\n"
        "assert len(cards) >= 5 and all(r.doc(n) for r in rooms for n in r.names())\n"
        "assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules), 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


FAMILY = """
ASKED = {"kind": "proxy_indices", "from": "server", "to": "client", "what": "which"}
ANSWERS = ({"kind": "logits", "from": "client", "to": "server"},)
ROUND = HERE
HERE = ROUND
"""
MEMBER = """
from family import ANSWERS as THEIRS, ASKED, ROUND, absent
from nowhere import gone
OWN = "of the member"
class Thing(gone):
    card = SimpleProtocolCard(
        name="thing",
        messages=(ASKED, *THEIRS, {"kind": "logits", "from": "server", "to": "client", "what": OWN}),
        privacy={"a": {"b": (OWN,)}},
        FIELD
    )
raise RuntimeError("this module was imported")
"""


@pytest.fixture
def member(tmp_path, monkeypatch):
    def made(field=""):
        (tmp_path / "family.py").write_text(f"{FAMILY}raise RuntimeError('this module was imported')")
        (tmp_path / "member_of_family.py").write_text(MEMBER.replace("FIELD", field))
        return Registry("fdaudit.protocols", {"thing": "member_of_family:Thing"})

    monkeypatch.syspath_prepend(str(tmp_path))
    return made


def test_names_stand_for_the_literals_of_a_family(member):
    """Nothing is imported."""
    own = {"kind": "logits", "from": "server", "to": "client", "what": "of the member"}
    asked = {"kind": "proxy_indices", "from": "server", "to": "client", "what": "which"}
    assert member().describe("thing") == SimpleProtocolCard(
        name="thing",
        messages=(asked, {"kind": "logits", "from": "client", "to": "server"}, own),
        privacy={"a": {"b": ("of the member",)}},
    )


@pytest.mark.parametrize("value", ["(absent, OWN)", "gone", "ROUND", "(*OWN,)", "tuple([OWN])", "OWN + OWN"])
def test_a_field_that_is_no_literal_is_refused(member, value):
    with pytest.raises(SpecError, match=r"^protocols\.thing: .* computes trust"):
        member(f"trust={value},").describe("thing")


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
        with pytest.raises(FdauditError, match=rf"'{names[0]}' .* elsewhere:{names[0]}"):
            ask()


@pytest.mark.parametrize(("field", "shown"), [(None, "attack"), ("attacks.3.name", "attacks.3.name")])
def test_an_unknown_name_is_refused_with_the_nearest(field, shown):
    for ask in (attacks.REGISTRY.load, attacks.REGISTRY.describe):
        refused(partial(ask, "loss-treshold", field), shown, "loss-treshold", ["'loss-threshold'"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("room", "name"),
    [(r, n) for r in (attacks, defenses, protocols) for n in r.REGISTRY.names()],
    ids=lambda v: v if isinstance(v, str) else v.__name__.rpartition(".")[2],
)
def test_every_public_name_loads_and_says_so_itself(room, name):
    cls = room.REGISTRY.load(name)
    card = room.REGISTRY.describe(name)
    assert cls.card == card
    assert card.name == name
    assert room.REGISTRY.doc(name) == inspect.getdoc(cls)
