"""What the documentation says is so: every command, snippet, table, link and generated page."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from fdaudit.deviations import REGISTRY as DEVIATIONS

import fdaudit
from fdaudit import attacks, defenses, protocols, testing
from fdaudit.accounting.calibration import Shape
from fdaudit.adversary.view import export_view
from fdaudit.audit import summary
from fdaudit.cli.app import app
from fdaudit.errors import DataError, FdauditError
from fdaudit.evaluation.controls import _membership, gradients
from fdaudit.kinds import KINDS
from fdaudit.planning.ladder import LADDER
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.card import load_card
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.storage.digests import canonical
from fdaudit.sweeps.grid import Grid, expand, load_grid
from fdaudit.transcript.messages import Message

from ..helpers.docs_pages import EXTRAS, GENERATED, GENERATOR, PAGES, ROOT, blocks, module, page, slugs, table
from ..helpers.importable import importable
from ..helpers.run_cases import known

TINY = {
    "name": "A tiny audit",
    "profile": "quick",
    "clients": 2,
    "threads": 1,
    "dataset": {"name": "digits", "limit": 200},
    "model": {"name": "mlp", "params": {"widths": [16]}},
    "protocol": {"params": {"rounds": 2, "upload": "gradient", "batch_size": 2}},
    "splits": {"candidates": 10},
    "adversaries": ["server", "world"],
    "victims": 1,
    "attacks": [{"name": "loss-threshold"}],
}
WORD = re.compile(r"[^\s|]*[^\W_][^\s|]*")
ROOMS = {"protocols": protocols.REGISTRY, "attacks": attacks.REGISTRY, "defences": defenses.REGISTRY}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run in a directory called `audit`, with its report."""
    made = fdaudit.run(TINY, tmp_path_factory.mktemp("docs") / "audit")
    fdaudit.report(made)
    return made.directory


# -- generated pages and tables --------------------------------------------------------------------------------


def test_the_generator_writes_every_page_and_no_other(tmp_path: Path) -> None:
    gone, own = tmp_path / "attacks" / "gone.md", tmp_path / "faq.md"
    gone.parent.mkdir()
    gone.write_text("An attack that was removed.")
    own.write_text("A hand-written page.")
    GENERATOR.write(tmp_path)
    written = {p.relative_to(tmp_path).as_posix(): p for p in tmp_path.rglob("*") if p.is_file()}
    assert written.keys() == {*GENERATOR.PAGES, "faq.md"}
    assert written["faq.md"].read_text() == "A hand-written page."
    for name in GENERATOR.PAGES:
        assert written[name].read_text(encoding="utf-8") == page(f"docs/{name}")
    for name in GENERATOR.PAGES:
        if name.endswith(".json"):
            json.loads(page(f"docs/{name}"))


def test_the_generator_does_not_touch_a_page_that_is_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sphinx reads every page again that was written."""
    monkeypatch.setattr(GENERATOR, "PAGES", {"spec.md": lambda: "as before", "card.md": lambda: "new"})
    monkeypatch.setattr(GENERATOR, "_ROOMS", {})
    for name in ("spec.md", "card.md"):
        (tmp_path / name).write_text("as before")
        os.utime(tmp_path / name, ns=(1, 1))
    GENERATOR.write(tmp_path)
    assert (tmp_path / "spec.md").stat().st_mtime_ns == 1
    assert (tmp_path / "card.md").read_text() == "new"


def test_git_ignores_the_generated_pages_and_nothing_else_of_the_documentation() -> None:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = {line.removeprefix("/docs/") for line in lines if line.startswith("/docs/")}
    assert ignored == {name if "/" not in name else f"{name.split('/')[0]}/" for name in GENERATOR.PAGES}


@pytest.mark.parametrize("room", ["protocols", "attacks", "defences"])
def test_a_room_has_notes_for_each_name_and_no_other(room: str) -> None:
    """Notes of a name that is gone would stay for ever."""
    assert _tops(ROOT / "docs" / "notes" / room) == {f"{name}.md" for name in ROOMS[room].names()}


@pytest.mark.parametrize(
    ("room", "name"), [(r, n) for r, registry in ROOMS.items() for n in registry.names()]
)
def test_every_name_has_a_page_with_all_its_sections(room: str, name: str) -> None:
    text = page(f"docs/{room}/{name}.md")
    found = {
        title: body.strip()
        for title, body in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    }
    card = {"protocols": "Messages", "attacks": "What it needs", "defences": "What it does"}[room]
    for title in ("Equations", "When to use it", "Limits", card, "Settings"):
        assert len(found[title]) > 15, title
    assert "```math" in found["Equations"]
    assert found["Limits"].startswith("- ")
    assert "\nSource: " in text
    assert room != "defences" or len(GENERATOR.guarantee(name)) > 10


def test_every_field_of_the_spec_has_a_meaning() -> None:
    schema = Spec.model_json_schema()
    for owner in (schema, *schema["$defs"].values()):
        for name, field in owner["properties"].items():
            assert field.get("description") or "$ref" in field, f"{owner['title']}.{name}"


def test_the_page_of_kinds_tells_of_each_what_it_holds_and_who_reads_it() -> None:
    found = table("docs/kinds.md", "# Message kinds")
    assert found.keys() == KINDS.keys()
    for name, (tensors, size, *_, readers) in found.items():
        assert tensors.removeprefix("only ") == KINDS[name].text
        assert size == ("fixed" if KINDS[name].fixed_size else "varies")
        for attack in attacks.REGISTRY.names():
            card = attacks.REGISTRY.describe(attack)
            assert (f"[{attack}]" in readers) == (name in (*card.needs, *card.reads))


def test_the_transcript_page_lists_a_lines_fields_the_manifest_and_the_checkpoint(run: Path) -> None:
    assert list(table("docs/transcript.md", "## The log")) == [
        f.name for f in dataclasses.fields(Message) if f.compare
    ]
    manifest = json.loads((run / "manifest.json").read_bytes())
    assert set(table("docs/transcript.md", "## The manifest")) == set(manifest) | {"origin", "recording"}
    named = table("docs/transcript.md", "## Checkpoints and resuming")
    checkpoint = json.loads((run / "vault" / "round.json").read_bytes())
    assert {n.strip("` ") for row in named for n in row.split(",")} == set(checkpoint)


def test_the_transcript_page_lists_what_lies_in_a_run_its_vault_and_a_view(run: Path, tmp_path: Path) -> None:
    assert _listed("## A run's directory") == _tops(run) | {"card.yaml"}  # of a recording
    assert _listed("## The vault") == _tops(run / "vault") - {".gitignore"}
    export_view(fdaudit.load(run).view("client/1"), tmp_path / "view")
    assert _listed("## An exported view") == {
        p.replace("client-1", "client-3") for p in _tops(tmp_path / "view")
    }
    logs = run / "attacks" / "world-loss-threshold"
    assert _tops(logs) == {"queries.jsonl", "payloads"}
    first = json.loads((logs / "queries.jsonl").read_bytes().split(b"\n")[0])
    assert first["previous"] == json.loads((run / "manifest.json").read_bytes())["head"]


def _listed(heading: str) -> set[str]:
    return {row.split("/")[0] for row in table("docs/transcript.md", heading)}


def _tops(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir()}


def test_the_threat_model_names_the_controls_as_they_are() -> None:
    text = " ".join(page("docs/threat-model.md").split())
    assert f"at least {gradients.LEAST_GAIN_DB:g} dB closer" in text
    assert f"stay below {gradients.LEAST_GAIN_DB:g} dB" in text
    assert f"of at most {_membership.WORKS:g}" in text
    assert f"p above {1 - _membership.CONFIDENCE:.2g} to either side" in text
    assert f"noise of {gradients._DROWNING:g} times" in text


# -- the reader and checker ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(ROOT / "examples" / "check_run.py", tmp_path_factory.mktemp("checker")))


def _checked(checker: Path, run: Path) -> tuple[bool, str]:
    done = subprocess.run(
        [sys.executable, str(checker), str(run)], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and done.stdout.endswith("intact\n"), done.stdout + done.stderr


def test_the_checker_needs_nothing_of_fdaudit_and_reads_an_intact_run(checker: Path, run: Path) -> None:
    tree = ast.walk(ast.parse(checker.read_text(encoding="utf-8")))
    names = {a.name for n in tree if isinstance(n, ast.Import) for a in n.names}
    tree = ast.walk(ast.parse(checker.read_text(encoding="utf-8")))
    names |= {str(n.module) for n in tree if isinstance(n, ast.ImportFrom)}
    assert names == {"__future__", "hashlib", "json", "pathlib", "safetensors", "sys"}
    intact, said = _checked(checker, run)
    assert intact, said
    messages = json.loads((run / "manifest.json").read_bytes())["messages"]
    assert len(said.splitlines()) == messages + 1


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)


def _edit_log(run: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    log = run / "transcript" / "messages.jsonl"
    log.write_bytes(b"\n".join(change(log.read_bytes().split(b"\n"))))


def _edited(line: bytes) -> bytes:
    return canonical({**json.loads(line), "bytes_on_wire": 1})


def _rechained(lines: list[bytes]) -> list[bytes]:
    """The log with its first line edited and every later line chained anew."""
    made = [_edited(lines[0])]
    for line in lines[1:-1]:
        made.append(canonical({**json.loads(line), "previous": hashlib.sha256(made[-1]).hexdigest()}))
    return [*made, b""]


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a byte of a payload": lambda run: _flip(run / "transcript/payloads/round-000001.shard"),
    "a payload is missing": lambda run: (run / "transcript/payloads/round-000001.shard").unlink(),
    "a file that nobody listed": lambda run: (run / "transcript/payloads/x").touch() or None,
    "a line edited": lambda run: _edit_log(run, lambda ls: [_edited(ls[0]), *ls[1:]]),
    "a line dropped": lambda run: _edit_log(run, lambda ls: [*ls[:2], *ls[3:]]),
    "two lines swapped": lambda run: _edit_log(run, lambda ls: [ls[1], ls[0], *ls[2:]]),
    "the end cut off": lambda run: _edit_log(run, lambda ls: [*ls[:-2], b""]),
    "the final newline cut off": lambda run: _edit_log(run, lambda ls: ls[:-1]),
    "all lines chained anew": lambda run: _edit_log(run, _rechained),
    "the spec": lambda run: _flip(run / "spec.yaml"),
    "the manifest": lambda run: _flip(run / "manifest.json"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_the_checker_and_verify_refuse_a_damaged_run(
    what: str, checker: Path, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    DAMAGE[what](copy)
    intact, said = _checked(checker, copy)
    assert not intact, said
    assert "intact" not in said
    assert fdaudit.Run(copy).verify() != []


# -- snippets and commands -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["docs/tour.md", "docs/transcript.md"])
def test_the_python_snippets_run(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "audit" / "fedavg")
    monkeypatch.chdir(tmp_path)
    snippets = blocks(name, "python")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, name, "exec"), {"__name__": "snippet"})
    assert name != "docs/tour.md" or "report" in capsys.readouterr().out


def test_canonical_form_is_as_the_page_writes_it() -> None:
    scope: dict[str, Callable[[object], bytes]] = {}
    exec(blocks("docs/transcript.md", "python")[0], scope)  # type: ignore[arg-type]
    for value in ({"b": [1.5, None, True], "a": {"ε": "\n"}}, [], "\ud83d\ude00"):
        assert scope["canonical"](value) == canonical(value)


def test_yaml_snippets_are_specs_grids_or_cards() -> None:
    snippets = [(name, snippet) for name in PAGES for snippet in blocks(name, "yaml")]
    for folder in ("curve", "extras", "gate", "hospital"):
        paths = (ROOT / "examples" / folder).glob("*.yaml")
        snippets.extend((path.name, path.read_text(encoding="utf-8")) for path in paths)
    assert len(snippets) > 20
    for name, snippet in snippets:
        value = yaml.safe_load(snippet)
        try:
            if "asserted_by" in value:
                load_card(value)
            elif "sweep" in value:
                assert expand(load_grid(value))
            else:
                fdaudit.load_spec(value)
        except FdauditError as error:
            pytest.fail(f"{name}: {error}")


def test_the_page_on_sweeps_lists_the_fields_of_a_grid_and_the_keys_beside_calibrate() -> None:
    assert list(table("docs/sweeps.md", "## The grid")) == list(Grid.model_fields)
    rows = page("docs/sweeps.md").split("| Key beside `calibrate` |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == {
        "calibrate",
        "share",
        *Shape.model_fields,
    }


def _commands() -> Iterator[tuple[str, str]]:
    for name in PAGES:
        text = page(name)
        for block in blocks(name, "bash"):
            for line in block.splitlines():
                if "fdaudit " in line:
                    yield name, line.split(" #")[0].strip().removeprefix(".venv/bin/")
        for inline in re.findall(r"`(fdaudit [^`]+)`", text):
            yield name, inline
    for entry in GENERATOR.results():
        for line in entry["command"].split(" && "):
            if line.startswith("fdaudit "):
                yield f"docs/results/index.csv, {entry['file']}", line
    for line in [*summary._reproduce("simulation").commands, *summary._reproduce("recording").commands]:
        yield "the report", line


def test_every_command_line_parses() -> None:
    group = typer.main.get_command(app)
    found = list(_commands())
    assert len(found) > 10
    for where, line in found:
        _, name, *arguments = shlex.split(line)
        command = group.commands.get(name)  # type: ignore[attr-defined]
        assert command is not None, f"{where}: {line}"
        try:
            command.make_context(name, arguments)
        except Exception as error:
            pytest.fail(f"{where}: {line}: {error}")


def test_make_targets_and_named_files_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {t for name in PAGES for t in re.findall(r"(?:`|^)make ([a-z]+)", page(name), re.MULTILINE)}
    assert named
    assert named <= targets
    named = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|yaml|md|toml))`")
    absent = [
        f"{name}: {path}"
        for name in (*PAGES, "CHANGELOG.md")
        for path in named.findall(page(name))
        if not (path in GENERATED or (ROOT / path).is_file())
    ]
    assert absent == []


def test_links_lead_somewhere() -> None:
    links = [(name, target) for name in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", page(name))]
    assert len(links) > 100
    for name, target in links:
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        relative = file.relative_to(ROOT).as_posix()
        assert relative in GENERATED or file.exists(), f"{name}: {target}"
        if anchor:
            assert anchor in slugs(relative), f"{name}: {target}"


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_pages_outside_the_site_link_to_files_of_the_repository(name: str) -> None:
    """The generated pages are not in it."""
    for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page(name)):
        if not target.startswith("https://"):
            assert target not in GENERATED, target
            assert (ROOT / target).exists(), target


def test_hand_written_pages_have_at_most_45_000_words() -> None:
    """A word has a letter or a digit; code and formulas count."""
    written = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    for path in (ROOT / "docs").rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".md", ".rst") and name not in GENERATED and not name.startswith("docs/_build/"):
            written.append(path)
    assert len(written) > 100
    words = 0
    for path in written:
        words += len(WORD.findall(path.read_text(encoding="utf-8")))
    assert words <= 45_000


def test_the_indexes_name_every_page() -> None:
    """What no table begins a row with is neither in the site's contents nor found by a reader."""
    indexes = [name for name in PAGES if name.endswith("/index.md")]
    trees = {name: module("contents").trees(page(name)) for name in indexes}
    linked = [
        (Path(name).parent / f"{found}.md").as_posix()
        for name, sections in trees.items()
        for _, pages in sections
        for found in pages
        if not found.startswith("api/")
    ]
    assert sorted(linked) == sorted(set(PAGES) - {"README.md", "docs/index.md"})


def test_every_page_states_the_quickstart_s_measured_time_and_size() -> None:
    found = json.loads((ROOT / "docs" / "quickstart.json").read_bytes())
    minutes, megabytes = round(found["clock_seconds"] / 60), round(found["bytes"] / 1e6)
    readme, faq = page(ROOT / "README.md"), page(ROOT / "docs" / "faq.md")
    assert f"take some {minutes} minutes" in readme
    assert f"holds {megabytes} MB" in readme
    assert f"[{minutes} minutes](quickstart.md#one-quickstarts-figures)" in faq
    stated = [
        (name, said)
        for name in ("README.md", "docs/faq.md", "docs/install.md", "docs/index.md", "docs/own-data.md")
        for said in re.findall(r"make audit[^.]*?\[?(\w+) minutes", (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert {said for _, said in stated} == {str(minutes)}, stated


# -- the page on imports lists what the program knows --------------------------------------------------------------


def test_the_ladder_on_the_page_is_the_program_s() -> None:
    lines = page("docs/import.md").splitlines()
    assert [line for line in lines if line in {f"| {what} | {buys} |" for what, _, buys in LADDER}] == [
        f"| {what} | {buys} |" for what, _, buys in LADDER
    ]


# -- the threat model's tables -------------------------------------------------------------------------------------


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = table("docs/threat-model.md", "### What is promised")
    named = {name for row in rows.values() for name in re.findall(r"`(tests/[\w/]+\.py)`", row[-1])}
    assert len(rows) > 10
    assert [promise for promise, row in rows.items() if "`tests/" not in row[-1]] == []
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("role", ["server", "client", "aggregator"])
def test_the_table_says_who_has_a_shipped_deviation(role: str) -> None:
    rows = table("docs/threat-model.md", "## Parties that depart")
    shipped = {who.partition(",")[0]: row[1] for who, row in rows.items()}
    able = any(role in DEVIATIONS.describe(name).roles for name in DEVIATIONS.names())
    assert shipped[role] == ("yes" if able else "no")


# -- the baselines' specs with the papers' settings ----------------------------------------------------------------


PAPER = sorted((ROOT / "examples" / "paper").glob("*.yaml"))
MNIST = [p for p in PAPER if load_spec(p).dataset.name == "mnist"]


def test_each_protocol_has_the_papers_settings_and_a_reduced_version() -> None:
    names = {p.name for p in PAPER}
    for protocol in ("ds-fl", "feded", "fedkd", "fedmd", "fkd", "pls"):
        assert {f"{protocol}-mnist.yaml", f"{protocol}-mnist-small.yaml"} <= names


@pytest.mark.parametrize("path", PAPER, ids=lambda p: p.stem)
def test_each_says_what_it_is_and_leaves_the_seed_open(path: Path) -> None:
    spec = load_spec(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "20" in text.split("fdaudit:")[0], "the head names no paper"
    assert spec.name != "audit"
    assert spec.seed is None
    assert path.stem.endswith("-small") or path.with_stem(f"{path.stem}-small") in PAPER


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is not set")
@pytest.mark.parametrize("path", MNIST, ids=lambda p: p.stem)
def test_those_on_mnist_can_be_planned(path: Path) -> None:
    case = simulated_case(load_spec(path), known(1))
    assert len(case.public) or not case.protocol.card.needs_public


# -- the examples of `docs/extending.md` are short, and pass the checks that the page shows ------------------------


_PAGE = "docs/extending.md"


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package of the page, with the protocol that stands on it."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXTRAS / "fdaudit_extras", site / "fdaudit_extras")
    (text,) = (b for b in blocks(_PAGE, "python") if b.startswith("# fdaudit_extras/distil.py"))
    (site / "fdaudit_extras" / "distil.py").write_text(text, encoding="utf-8")
    with importable(site, "fdaudit_extras"):
        yield site / "fdaudit_extras"


def calls() -> list[ast.Expr]:
    (text,) = (b for b in blocks(_PAGE, "python") if b.startswith("from fdaudit.testing import"))
    return [line for line in ast.parse(text).body if isinstance(line, ast.Expr)]


@pytest.mark.parametrize("call", calls(), ids=ast.unparse)
def test_the_checks_of_the_page_pass(call: ast.Expr, extras: Path) -> None:
    checked = call.value
    assert isinstance(checked, ast.Call)
    arguments = [ast.literal_eval(argument) for argument in checked.args]
    getattr(testing, ast.unparse(checked.func))(*arguments)


def test_the_long_example_of_a_protocol_passes(extras: Path) -> None:
    testing.check_protocol("import:fdaudit_extras.one_shot:OneShot", {"local_epochs": 1, "batch_size": 4})


@pytest.mark.parametrize("name", ["confidence", "distil", "sign"])
def test_an_example_takes_at_most_40_lines(name: str, extras: Path) -> None:
    assert len((extras / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 40


# -- the example specs ---------------------------------------------------------------------------------------------


GRIDS = sorted((ROOT / "examples").glob("sweep-*.yaml"))
EXAMPLES = sorted(set((ROOT / "examples").glob("*.yaml")) - set(GRIDS))
WORKED = sorted(p for d in ("curve", "gate", "hospital") for p in (ROOT / "examples" / d).glob("*.yaml"))
QUICKSTART = sorted((ROOT / "fdaudit" / "quickstart").glob("*.yaml"))
OFFLINE = [
    p for p in [*QUICKSTART, *EXAMPLES] if load_spec(p).dataset.name in ("digits", "digits-multilabel")
]


def test_the_examples_page_names_every_example() -> None:
    assert len(EXAMPLES) >= 6
    for path in [*EXAMPLES, *GRIDS, *QUICKSTART]:
        assert f"`{path.relative_to(ROOT).as_posix()}`" in page("docs/examples.md")


@pytest.mark.parametrize("path", [*QUICKSTART, *EXAMPLES], ids=lambda p: p.stem)
def test_examples_say_what_they_are_about_and_take_the_quick_profile(path: Path) -> None:
    spec = load_spec(path)
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert spec.name != "audit"
    assert spec.profile == "quick"
    assert spec.seed is None


@pytest.mark.parametrize("path", WORKED, ids=lambda p: p.stem)
def test_the_specs_of_the_case_studies_load_and_say_what_they_are_about(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert load_spec(path).profile == "quick"


@pytest.mark.parametrize("path", OFFLINE, ids=lambda p: p.stem)
def test_examples_on_digits_can_be_planned(path: Path) -> None:
    case = simulated_case(load_spec(path), known(1))
    assert any(a.params is not None for a in case.attacks)


def test_the_npz_example_takes_a_file_in_medmnist_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    images = draw.integers(0, 256, (400, 28, 28), dtype=np.uint8)
    labels = (np.arange(400) % 2).astype(np.uint8)[:, None]
    arrays = {
        f"{part}_{what}": a
        for part in ("train", "test")
        for what, a in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "pneumoniamnist.npz", **arrays)
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path))
    case = simulated_case(load_spec(ROOT / "examples" / "npz.yaml"), known(1))
    assert case.dataset.classes == 2
    assert case.dataset.input_shape == (1, 28, 28)


def test_the_mnist_example_says_where_its_data_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"MNIST/raw.*FDAUDIT_DATA.*download"):
        simulated_case(load_spec(ROOT / "examples" / "fedavg-mnist.yaml"), known(1))


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is not set")
@pytest.mark.parametrize("name", ["fedavg-mnist", "npz"])
def test_examples_with_data_can_be_planned(name: str) -> None:
    case = simulated_case(load_spec(ROOT / "examples" / f"{name}.yaml"), known(1))
    assert any(a.params is not None for a in case.attacks)
