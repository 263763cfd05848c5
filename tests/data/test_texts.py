"""Texts: words and their numbers, the tables that are read and those that are refused, the vocabulary."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdaudit.data import Dataset, load_dataset
from fdaudit.data.texts.files import read_texts
from fdaudit.data.texts.vocabulary import known_words
from fdaudit.data.texts.words import SPECIAL, Numbering, words_of
from fdaudit.errors import DataError
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec, load_spec
from fdaudit.tasks import TEXT
from fdaudit.testing.specs import small_spec
from fdaudit.types import PADDING, UNKNOWN

from ..helpers.run_cases import known
from ..helpers.text_cases import texts, write_texts
from .loading import written as table

HELD = Path(os.environ.get("FDAUDIT_DATA", ""))


def shown(dataset, row):
    return [dataset.words[n] for n in dataset.x[row].tolist()]


# -- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's Two-fold!", ["it's", "two", "fold"]),
        (r"a second\team, 10 million", ["a", "second", "team", "10", "million"]),
        ("ÉTÉ 東京", ["été", "東京"]),
        ("under_score '' ...", ["under", "score"]),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_and_digits(text, words):
    assert words_of(text) == words


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_table_is_read_row_by_row_into_known_words(tmp_path):
    path = table(tmp_path, 'id,text,label\r\n7,"One, two\nthree four",0\r\n\r\n8,two five,1\r\n')
    raw = read_texts(path, Numbering(3))
    assert raw.words[:2] == SPECIAL
    assert [[raw.words[n] for n in row] for row in raw.x.tolist()] == [
        ["one", "two", "three"],
        ["two", "five", "<pad>"],
    ]
    assert raw.y.tolist() == [0, 1]
    assert (raw.x.dtype, raw.classes) == (torch.int64, 2)
    raw = read_texts(table(tmp_path, 'text\tlabel\n"so it goes\t0\nyes\t1\n', "a.tsv"), Numbering(4))
    assert [raw.words[n] for n in raw.x[0].tolist()] == ["so", "it", "goes", "<pad>"]
    raw = read_texts(table(tmp_path, "text,label\n!!!,0\nyes,1\n"), Numbering(2))
    assert raw.x[0].tolist() == [UNKNOWN, PADDING]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("text,label\n", "holds no record"),
        ("text,class\na,0\n", "no column label"),
        ("text,text,label\na,b,0\n", "no column text, or several"),
        ("text,label\na,0\nb,1,2\n", "row at line 3 has 3 fields, not 2"),
        ("text,label\na,0\n  ,1\n", "row at line 3 has no text"),
        ("text,label\na,0\n\nb,x\n", "row at line 4 has the label 'x'"),
        ("text,label\na,0\nb,-1\n", "row at line 3 has the label '-1'"),
        ("text,label\na,0\nb,1.0\n", "row at line 3 has the label '1.0'"),
        ("text,label\na,0\nb,10000\n", "row at line 3 has the label '10000'"),
        ("text,label\na,0\nb,²\n", "row at line 3 has the label '²'"),
        ("text,label\na,1\nb,2\n", "numbers its classes from 1"),
        ("text,label\na,0\nb,0\n", "one class only"),
        ('text,label\na,0\n"b,1\n', "row at line 3 is no row of a table"),
        (f"text,label\na,0\n{'b ' * 50_001},1\n", "characters, more than 100,000"),
        (f"text,label\na,0\n{'b' * 200_000},1\n", "row at line 3 is no row of a table"),
        (b"text,label\n\xff,0\n", "it is not UTF-8"),
    ],
)
def test_a_damaged_table_is_one_error_that_names_the_row(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_texts(table(tmp_path, content), Numbering(4))


def test_a_large_table_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("FDAUDIT_MOST_TABLE_BYTES", "20")
    with pytest.raises(DataError, match="FDAUDIT_MOST_TABLE_BYTES raises that"):
        read_texts(table(tmp_path, "text,label\nabc,0\nabc,1\n"), Numbering(4))


def test_tokens_that_would_fill_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FDAUDIT_MOST_DATA_BYTES", "100")
    with pytest.raises(DataError, match="FDAUDIT_MOST_DATA_BYTES raises that"):
        read_texts(table(tmp_path, "text,label\na,0\nb,1\n"), Numbering(8))


def test_settings_that_do_not_fit_texts_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv' .*`dataset\.root`"):
        load_dataset(DatasetSpec(name="text:none.csv", root=str(tmp_path)), SecretStream(b"0" * 16, "data"))
    name = f"text:{write_texts(tmp_path / 'a.csv')}"
    with pytest.raises(DataError, match=r"^dataset\.image_size: 8 "):
        load_dataset(DatasetSpec(name=name, image_size=8), SecretStream(b"0" * 16, "data"))
    shares = {"test": 0.2, "proxy": 0.0, "auxiliary": 0.0, "candidates": 4}
    with pytest.raises(DataError, match=r"^splits: .* vocabulary"):
        simulated_case(spec_of(write_texts(tmp_path / "a.csv"), splits=shares), known(0))


@pytest.mark.skipif(not (HELD / "ag_news.csv").is_file(), reason="AG News is not in FDAUDIT_DATA")
def test_ag_news_has_four_classes_and_keeps_titles(tmp_path):
    dataset = load_dataset(DatasetSpec(name="ag_news", length=5), SecretStream(b"0" * 16, "data"))
    assert torch.bincount(dataset.y).tolist() == [1900] * 4
    assert shown(dataset, 0) == ["fears", "for", "t", "n", "pension"]


@pytest.mark.skipif(not (HELD / "sst2_dev.tsv").is_file(), reason="SST-2 is not in FDAUDIT_DATA")
def test_sst2_is_tested_on_its_development_split():
    dataset = load_dataset(DatasetSpec(name="sst2", limit=100), SecretStream(b"0" * 16, "data"))
    assert len(dataset.y) == 100
    assert dataset.test_y is not None
    assert len(dataset.test_y) == 872


# -- the dataset ---------------------------------------------------------------------------------------------------


def given(x, y=(0, 1), words=("<pad>", "<unknown>", "a")):
    return Dataset(name="t", x=x, y=torch.tensor(y), classes=2, provenance="", words=words)


def test_texts_are_a_task_whose_digest_covers_the_words() -> None:
    made = given(torch.tensor([[2, 0], [1, 2]]))
    assert (made.task, made.input_shape) == (TEXT, (2,))
    assert made.sha256() != replace(made, words=("<pad>", "<unknown>", "b")).sha256()


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[3, 0], [1, 2]]),
        torch.tensor([[-1, 0], [1, 2]]),
        torch.rand(2, 2),
        torch.rand(2, 1, 2, 2),
    ],
)
def test_a_dataset_of_texts_holds_numbers_of_its_words(x):
    with pytest.raises(DataError):
        given(x)


@pytest.mark.parametrize("field", ["length", "vocabulary"])
def test_fields_of_texts_are_refused_for_images(field):
    with pytest.raises(DataError, match=rf"^dataset\.{field}: 8 "):
        load_dataset(DatasetSpec(**{field: 8}), SecretStream(b"0" * 16, "data"))


# -- the vocabulary ------------------------------------------------------------------------------------------------


def test_a_vocabulary_is_ordered_by_how_often_words_occur_in_public_texts():
    words = ("<pad>", "<unknown>", "secret", "b", "a", "often")
    raw = given(torch.tensor([[5, 4, 3], [5, 2, 2]]), words=words)
    public = given(torch.tensor([[5, 4, 3], [2, 5, 5]]), words=words)
    made = known_words(raw, torch.tensor([0]), 8)
    assert made.words == ("<pad>", "<unknown>", "a", "b", "often")
    assert shown(made, 0) == ["often", "a", "b"]
    assert shown(made, 1) == ["often", "<unknown>", "<unknown>"]
    assert known_words(public, torch.tensor([0, 1]), 3).words == ("<pad>", "<unknown>", "often")


def spec_of(path, **changes):
    own = {
        "dataset": {"name": f"text:{path}", "length": 10},
        "splits": {"test": 0.2, "proxy": 0.1, "auxiliary": 0.1, "candidates": 4},
        "model": {"name": "transformer", "params": {"width": 4}},
    }
    return load_spec(small_spec(**(own | changes)))


def test_private_words_change_nothing_that_others_see(tmp_path):
    case = simulated_case(spec_of(write_texts(tmp_path / "a.csv")), known(0))
    splits, words = case.splits, case.dataset.words
    names = {f"name{row}" for row in torch.cat([splits.proxy, splits.auxiliary]).tolist()}
    assert {w for w in words if w.startswith("name")} == names
    # A client's text is replaced by others: the vocabulary and the network stay the same.
    row = int(splits.clients[0].train[0])
    changed = texts(120)
    changed[row] = ("entirely other words", changed[row][1])
    path = tmp_path / "b.csv"
    path.write_text("text,label\n" + "".join(f"{t},{y}\n" for t, y in changed))
    other = simulated_case(spec_of(path), known(0))
    assert other.dataset.words == words
    assert other.architecture == case.architecture
    assert other.dataset.x[row].tolist() == [UNKNOWN] * 3 + [PADDING] * 7
    same = torch.arange(120) != row
    assert torch.equal(other.dataset.x[same], case.dataset.x[same])
