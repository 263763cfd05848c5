"""The measured results: data files, their index, and pages of conclusions whose figures come from them."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

import fdaudit

from ..helpers.docs_pages import GENERATOR, ROOT, page

FOLDER = ROOT / "docs" / "results"
NO_COMMAND = "none: "
PAGES = {"results.md": (2500, 10), "performance.md": (1500, 13), "privacy-table.md": (3000, 27)}
"""Pages of conclusions, the most words that each may have, and the most rows of a table."""
NAMES = re.compile(
    r"`[^`]*`|\]\([^)]*\)|^#.*$|(?:Eq\.|Fig\.|Table|Algorithm|torch|client/|CIFAR-|until|mode)\s?[\d.]+|"
    r"[αεδγS] = [\d.e-]+|Dirichlet [\d.]+",
    re.MULTILINE,
)
"""What may hold a digit without being a measured figure: code, links, headings, names, and settings of a symbol."""


def _rows(name: str) -> list[list[str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _words(text: str) -> int:
    return sum(any(c.isalnum() for c in word) for word in text.replace("|", " ").split())


def test_the_index_lists_every_data_file_once_with_its_command() -> None:
    listed = [entry["file"] for entry in GENERATOR.results()]
    assert sorted(listed) == sorted(p.name for p in FOLDER.glob("*.csv") if p.name != "index.csv")
    entries = GENERATOR.results()
    assert [e["file"] for e in entries if e["command"].startswith(NO_COMMAND)] == [
        "papers.csv",
        "authors-code.csv",
        "cifar10-first-labels.csv",
        "performance.csv",
    ]
    head, *rows = _rows("performance.csv")
    for row in rows:
        _check(shlex.split(row[head.index("Command")]))
    for path in FOLDER.glob("*.yaml"):
        fdaudit.load_spec(path)


@pytest.mark.parametrize("entry", GENERATOR.results(), ids=lambda entry: entry["file"])
def test_a_data_file_is_one_table_with_a_command(entry: dict[str, str]) -> None:
    head, *rows = _rows(entry["file"])
    assert rows
    assert len(set(head)) == len(head)
    assert all(len(row) == len(head) for row in rows)
    for field in ("subject", "shows", "command", "seeds", "commit", "date"):
        assert entry[field], field
    assert entry["settings"] or entry["remarks"]
    if not entry["command"].startswith(NO_COMMAND):
        for command in entry["command"].split(" && "):
            _check(shlex.split(command))


def _check(words: list[str]) -> None:
    """Fail unless what a command names is there; `test_docs.py` parses those of fdaudit itself."""
    program, *arguments = words
    assert program in ("fdaudit", "make", "python"), program
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert arguments[0] in targets
    if program == "python" and arguments[0] == "-m":
        arguments[1] = f"{arguments[1].replace('.', '/')}.py"
    for argument in arguments:
        for path in re.findall(r"(?:tests|examples|benchmarks|docs|fdaudit)/[\w./-]+", argument):
            assert (ROOT / path).exists(), path


VERDICTS = (
    "near full",
    "reduced",
    "direction",
    "contradicted",
    "not shown",
    "not run",
    "not possible here",
    "no result",
)
UNMEASURED = ("not run", "not possible here", "no result")
PLACES: dict[str, list[str]] = {
    "Selective-FD": [*(f"Table {n}" for n in range(1, 6)), *(f"Fig. {n}" for n in range(1, 11))],
    "FedKD": [*(f"Table {n}" for n in range(1, 7)), *(f"Fig. {n}" for n in range(1, 3))],
    "FedIOD": [*(f"Table {n}" for n in range(1, 10)), *(f"Fig. {n}" for n in range(1, 9))],
    "DaFKD": [*(f"Table {n}" for n in range(1, 4)), *(f"Fig. {n}" for n in range(1, 8))],
}
"""The tables and figures of each paper."""


def test_each_row_beside_the_papers_has_a_verdict_and_what_it_rests_on() -> None:
    for row in _claims():
        assert row["Verdict"].startswith(VERDICTS), row
        if not row["Verdict"].startswith(UNMEASURED):
            assert all((row["Ours"], row["Seeds"], row["Data"], row["What differs"])), row
        elif not row["Verdict"].startswith("no result"):
            assert row["What differs"], row
        for name in filter(None, row["Data"].split("; ")):
            path = name.partition("#")[0]
            assert (FOLDER / f"{path}.csv").is_file() or (ROOT / "docs" / path).is_file(), row


@pytest.mark.parametrize("paper", PLACES)
def test_each_table_and_figure_of_a_paper_has_a_row(paper: str) -> None:
    listed = {
        place for row in _claims() if row["Paper"] == paper for place in _places(row["Table or figure"])
    }
    assert listed - {"title"} == set(PLACES[paper])


def _claims() -> list[dict[str, str]]:
    head, *rows = _rows("papers.csv")
    return [dict(zip(head, row, strict=True)) for row in rows]


def _places(stated: str) -> list[str]:
    """Return the tables and figures that a cell names: `Figs 1 to 3, Tables 4 and 5`."""
    if stated == "title":
        return [stated]
    places = []
    for kind, numbers in re.findall(r"(Tables?|Figs?\.?) ((?:\d+|, | to | and )+)", stated):
        first, *others = map(int, re.findall(r"\d+", numbers))
        last = others[-1] if others else first
        span = range(first, last + 1) if " to " in numbers else (first, *others)
        places += [f"{'Table' if kind.startswith('T') else 'Fig.'} {number}" for number in span]
    return places


@pytest.mark.parametrize("name", PAGES)
def test_conclusions_are_short_and_their_figures_are_taken_from_the_data(name: str) -> None:
    text = page(f"docs/{name}").partition("-->")[2]
    most_words, most_rows = PAGES[name]
    assert _words(text) <= most_words
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert tables
    assert max(table.count("\n") for table in tables) <= most_rows + 2  # below a head and a rule
    written = (ROOT / "docs" / "notes" / name).read_text(encoding="utf-8")
    prose = NAMES.sub("", re.sub(r"\{\{.*?\}\}", "", written))
    figures = re.findall(r"\d+\.\d+|\d[\d,.]* ?(?:%|dB|points?|times|seconds|s\b)|\d[\d,]{3,}", prose)
    assert figures == []
    assert "{{" not in page(f"docs/{name}")


@pytest.mark.parametrize(
    "placeholder",
    [
        "value | claims-from-below | Noise = as claimed | Bounds",
        "value | claims-from-below | Noise = twice | Bounds",
        "value | claims-from-below | Noise = none | Limits",
        "value | no-such-file | Noise = none | Bounds",
        "table | claims-from-below | Noise = none; Claimed = 8.0",
        "table | claims-from-below | | Claimed; Limits",
        "quote | claims-from-below | 1,000 perfect guesses reach ε = 9",
        "mean | claims-from-below | Bounds",
        "value | claims-from-below",
    ],
)
def test_a_placeholder_that_finds_nothing_is_refused(
    placeholder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _notes_at(tmp_path, f"It is {{{{{placeholder}}}}}.", monkeypatch)
    with pytest.raises(ValueError, match=re.escape(placeholder)):
        GENERATOR.conclusions_page("page.md")


def test_placeholders_are_filled_from_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "index.csv").write_text("file,settings,remarks\nf.csv,seven seeds,at most 3\n")
    (tmp_path / "results" / "f.csv").write_text("a,b\n1,x|y\n2,z\n2,w\n")
    _notes_at(
        tmp_path,
        "{{value | f | a = 1 | b}} {{count | f}} {{count | f | a = 2}} {{distinct | f | a}} {{quote | f | most 3}}\n\n"
        "{{table | f | a = 1 or 2; b = z or w | b as c; a}}",
        monkeypatch,
    )
    made = GENERATOR.conclusions_page("page.md").partition("-->")[2].strip()
    assert made == "x|y 3 2 2 most 3\n\n|c|a|\n|---|---|\n|z|2|\n|w|2|"
    _notes_at(tmp_path, "{{table | f | a = 1}}", monkeypatch)
    assert "|1|x\\|y|" in GENERATOR.conclusions_page("page.md")


def _notes_at(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the generator read a page's notes, and its data if there are any, below a folder."""
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "page.md").write_text(text, encoding="utf-8")
    if not (folder / "results").exists():
        (folder / "results").symlink_to(FOLDER)
    monkeypatch.setattr(GENERATOR, "_HERE", folder)
