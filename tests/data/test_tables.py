"""Tables: the columns that are read, the values that are refused, scales and categories that all may know."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from fdaudit.data import load_dataset
from fdaudit.data.tables import sheet as sheets
from fdaudit.data.tables.known import known_columns
from fdaudit.data.tables.named import NAMED
from fdaudit.data.tables.reading import rows_of
from fdaudit.data.tables.sheet import sheet_in, sheet_of_frame
from fdaudit.errors import DataError, SpecError
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import ColumnSpec, DatasetSpec
from fdaudit.tasks import TABLE
from fdaudit.tasks.columns import OTHER, Column, cells_of, shown_cell, spans, width_of

from ..helpers.table_cases import table_rows, write_table
from .loading import written

GOOD = "age,colour,label\n40,red,yes\n20,blue,no\n30,red,no\n50,green,yes\n"


def read(folder, content, name="a.csv", **described):
    return loaded(written(folder, content, name), **described)


def loaded(path, **described):
    return load_dataset(DatasetSpec(name=f"table:{path}", **described), SecretStream(b"0" * 16, "tables"))


# -- files ---------------------------------------------------------------------------------------------------------


def test_numbers_categories_and_the_label_are_found(tmp_path):
    data = read(tmp_path, GOOD)
    assert data.task == TABLE
    assert [(c.name, c.categories) for c in data.columns] == [
        ("age", ()),
        ("colour", ("blue", "green", "red")),
    ]
    assert data.x.tolist() == [[40, 0, 0, 1], [20, 1, 0, 0], [30, 0, 0, 1], [50, 0, 1, 0]]
    assert (data.y.tolist(), data.class_names) == ([1, 0, 0, 1], ("no", "yes"))


def test_csv_npz_and_a_frame_hold_the_same_rows(tmp_path):
    rows = table_rows(40)
    numbers, heights, counts, colours, labels = zip(*rows, strict=True)
    csv = loaded(write_table(tmp_path / "a.csv", 40))
    arrays = {
        "weight": np.array(numbers, dtype=float),
        "height": np.array(heights, dtype=float),
        "visits": np.array(counts),
        "colour": np.array(colours),
        "label": np.array(labels),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    npz = loaded(tmp_path / "a.npz")
    frame = pd.DataFrame({**arrays, "colour": pd.Categorical(colours)})
    raw = rows_of(sheet_of_frame(frame, "a.parquet"), None, None, "")
    for other in (npz, raw):
        assert torch.equal(csv.x, other.x)
        assert torch.equal(csv.y, other.y)
        assert csv.columns == other.columns


def test_columns_of_a_matrix_are_numbered_and_may_be_thousands(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(12.0).reshape(6, 2), label=np.arange(6) % 2)
    data = loaded(tmp_path / "a.npz")
    assert [c.name for c in data.columns] == ["x 0", "x 1"]
    assert data.x[1].tolist() == [2, 3]
    np.savez(tmp_path / "a.npz", x=np.zeros((12, 3000)), label=np.arange(12) % 2)
    assert loaded(tmp_path / "a.npz").x.shape == (12, 3000)


def test_what_holds_no_plain_values_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}, []], dtype=object), label=np.arange(2))
    with pytest.raises(DataError, match=r"a\.npz' .*allow_pickle"):
        loaded(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a\.xlsx' .*\.parquet"):
        read(tmp_path, GOOD, "a.xlsx")
    with pytest.raises(DataError, match="list in column 'a'"):
        sheet_of_frame(pd.DataFrame({"a": [[1], [2]], "label": [0, 1]}), "a.parquet")
    with pytest.raises(DataError, match=r"^dataset\.label: 'digit' "):
        load_dataset(DatasetSpec(name="digits", label="digit"), SecretStream(b"0" * 16, "tables"))


def test_a_spec_names_the_label_and_describes_columns(tmp_path):
    columns = {
        "age": ColumnSpec(mean=30, scale=10),
        "colour": ColumnSpec(categories=("red", "blue", "green", "black")),
        "label": ColumnSpec(kind="ignored"),
    }
    content = GOOD.replace("label", "ill") + "60,red,yes\n"
    data = read(tmp_path, content, label="ill", columns={k: columns[k] for k in ("age", "colour")})
    assert data.x[0].tolist() == [1, 1, 0, 0, 0]
    assert all(column.stated for column in data.columns)
    with pytest.raises(DataError, match=r"^dataset\.columns\.ill: 'ill' "):
        read(tmp_path, content, label="ill", columns={"ill": ColumnSpec(kind="category")})


def test_codes_can_be_categories_and_columns_can_be_left_out(tmp_path):
    content = "code,id,label\n1,7,a\n2,8,b\n1,9,a\n3,10,b\n"
    columns = {"code": ColumnSpec(kind="category"), "id": ColumnSpec(kind="ignored")}
    data = read(tmp_path, content, columns=columns)
    assert [c.categories for c in data.columns] == [("1", "2", "3")]
    stated = {"code": ColumnSpec(categories=(1, 2, 3)), "id": ColumnSpec(kind="ignored")}
    assert torch.equal(data.x, read(tmp_path, content, columns=stated).x)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("age,label\n", "holds no record"),
        ("age,outcome\n1,a\n", r"dataset.label: 'label' is no column"),
        ("label\na\nb\n", "has no column but its label"),
        ("age,age,label\n1,2,a\n", "has two columns 'age'"),
        (",age,label\n0,1,a\n", "has no name for column 1"),
        (f"{'n' * 201},label\n1,a\n", "a column name of 201 characters"),
        ("age,label\n1,a\n2,b,c\n", "row at line 3 has 3 fields, not 2"),
        ("age,label\n1,a\n2\n", "row at line 3 has 1 fields, not 2"),
        ("age,label\n1,a\n,b\n", r"row at line 3 has no value in column 'age' \(1 of 2 rows"),
        ("age,label\n1,a\nNaN,b\n", "row at line 3 has no value in column 'age'"),
        ("age,label\n1,a\n2,\n", "row at line 3 has no value in column 'label'"),
        ("age,label\n1,a\n1e300,b\n", r"row at line 3 has 1e\+300 in column 'age'"),
        ("age,label\n1,a\ninf,b\n", "row at line 3 has inf in column 'age'"),
        ("age,label\n1,a\n2,a\n", "holds one class only"),
        ("age,label\n1,0.5\n2,1.5\n", "holds 0.5, so it is a quantity"),
        ("age,label\n" + "".join(f"{k},{k}\n" for k in range(60)), "has 60 different values in 60 rows"),
        ("age,label\n" + "".join(f"{k},n{k}\n" for k in range(60)), "has 60 different values in 60 rows"),
        (
            "name,label\n" + "".join(f"n{k},{k % 2}\n" for k in range(1001)),
            "has 1,001 different values in column 'name', more than 1,000",
        ),
        (b"age,label\n\xff,0\n", "it is not UTF-8"),
    ],
)
def test_an_unfit_table_is_one_error_that_names_the_place(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"age": ColumnSpec(kind="category"), "weight": ColumnSpec()}, "'weight' is no column"),
        ({"colour": ColumnSpec(kind="number")}, "has 'red' in column 'colour', which is no number"),
        (
            {"colour": ColumnSpec(categories=("red", "blue"))},
            "has 'green' in column 'colour', which is not among",
        ),
    ],
)
def test_a_description_that_does_not_fit_names_the_row_or_the_column(tmp_path, column, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, GOOD, columns=column)


def test_a_missing_value_can_be_a_stated_category(tmp_path):
    content = "habit,label\nnone,a\nsmokes,b\n"
    with pytest.raises(DataError, match=r"column 'habit' .*`categories`"):
        read(tmp_path, content)
    columns = {"habit": ColumnSpec(categories=("none", "smokes"))}
    assert read(tmp_path, content, columns=columns).x.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": 1.0},
        {"kind": "category", "mean": 1.0, "scale": 2.0},
        {"kind": "number", "categories": ("a",)},
        {"categories": ("a",), "mean": 1.0, "scale": 2.0},
        {"categories": ("1", 1)},
    ],
)
def test_a_column_of_two_kinds_is_refused(wrong):
    with pytest.raises(SpecError, match=r"dataset\.columns"):
        ColumnSpec(**wrong)


def test_sizes_are_bounded_before_a_table_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FDAUDIT_MOST_TABLE_BYTES", "20")
    with pytest.raises(DataError, match="FDAUDIT_MOST_TABLE_BYTES raises that"):
        read(tmp_path, GOOD)
    monkeypatch.delenv("FDAUDIT_MOST_TABLE_BYTES")
    monkeypatch.setattr(sheets, "MOST_CELLS", 8)
    with pytest.raises(DataError, match="than 8 cells"):
        read(tmp_path, GOOD)
    monkeypatch.setattr(sheets, "MOST_COLUMNS", 2)
    with pytest.raises(DataError, match=r"3 columns, .* 2"):
        read(tmp_path, GOOD)


def test_one_hot_rows_that_would_fill_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FDAUDIT_MOST_DATA_BYTES", "50")
    with pytest.raises(DataError, match="FDAUDIT_MOST_DATA_BYTES raises that"):
        read(tmp_path, GOOD)


# -- Parquet -------------------------------------------------------------------------------------------------------


def test_parquet_without_pyarrow_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(sheets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="`pip install pyarrow`"):
        sheet_in(written(tmp_path, b"PAR1", "a.parquet"))


class HeldParquet:
    """What `pyarrow.parquet.ParquetFile` says of a file."""

    num_columns, num_rows, num_row_groups = 2, 3, 1

    def __init__(self, stream=None):
        self.metadata = self

    def row_group(self, k):
        return types.SimpleNamespace(total_byte_size=100)


@pytest.fixture
def pyarrow(monkeypatch):
    """A stand-in for pyarrow, and a frame that pandas reads with it."""
    top, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")
    top.ArrowException, top.parquet, parquet.ParquetFile = RuntimeError, parquet, HeldParquet
    monkeypatch.setitem(sys.modules, "pyarrow", top)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    monkeypatch.setattr(sheets.importlib.util, "find_spec", lambda name: object())
    frame = pd.DataFrame(
        {"plan": pd.Categorical(["a", "b", "a"], categories=["b", "a", "c"]), "label": [0, 1, 1]}
    )
    monkeypatch.setattr(pd, "read_parquet", lambda stream, engine: frame)
    return frame


def test_parquet_with_pyarrow_is_read_as_a_frame_within_its_footers_bounds(tmp_path, pyarrow, monkeypatch):
    found = sheet_in(written(tmp_path, b"PAR1", "a.parquet"))
    assert found.columns["plan"].tolist() == ["a", "b", "a"]
    assert found.columns["label"].tolist() == [0, 1, 1]
    path = written(tmp_path, b"PAR1", "a.parquet")
    monkeypatch.setattr(HeldParquet, "num_rows", 1 << 40)
    with pytest.raises(DataError, match="16,777,216 cells"):
        sheet_in(path)
    monkeypatch.undo()


def test_missing_values_of_a_frame_are_named_by_row():
    frame = pd.DataFrame({"a": [1, None], "b": pd.Categorical(["x", None]), "label": [0, 1]})
    for name in ("a", "b"):
        kept = frame[[name, "label"]]
        with pytest.raises(DataError, match=f"row 2 .* column '{name}'"):
            rows_of(sheet_of_frame(kept, "a.parquet"), None, None, "")


# -- what all parties may know -------------------------------------------------------------------------------------


def test_scales_and_categories_follow_from_public_rows_alone(tmp_path):
    data = read(tmp_path, GOOD)
    public = torch.tensor([0, 1])
    known = known_columns(data, public)
    age, colour = known.columns
    assert (age.mean, age.scale) == (30, 10)
    assert colour.categories == ("blue", "red", OTHER)
    assert known.x.tolist() == [[1, 0, 1, 0], [-1, 1, 0, 0], [0, 0, 1, 0], [2, 0, 0, 1]]
    changed = data.x.clone()
    changed[2:] = 7 * changed[[3, 2]]
    other = known_columns(replace(data, x=changed), public)
    assert other.columns == known.columns


def test_scales_keep_digits_and_are_never_zero(tmp_path):
    data = read(tmp_path, "time,label\n1700000001,0\n1700000002,1\n1700000003,1\n1700000004,0\n")
    known = known_columns(data, torch.arange(4))
    assert known.x.dtype == torch.float32
    times = cells_of(known.x, known.columns)[:, 0] - 1_700_000_000
    assert times.tolist() == pytest.approx([1, 2, 3, 4], abs=1e-6)
    data = known_columns(read(tmp_path, "a,b,label\n5,x,0\n5,x,1\n5,x,1\n"), torch.tensor([0, 1]))
    assert (data.columns[0].mean, data.columns[0].scale) == (5, 1)
    assert torch.isfinite(data.x).all()


def test_without_public_rows_a_table_must_be_described(tmp_path):
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(DataError, match=r"^splits: .*`dataset.columns`"):
        known_columns(read(tmp_path, GOOD), none)
    columns = {
        "age": ColumnSpec(mean=0, scale=1),
        "colour": ColumnSpec(categories=("red", "blue", "green")),
    }
    data = read(tmp_path, GOOD, columns=columns)
    known = known_columns(data, none)
    assert known.columns == data.columns
    assert torch.equal(known.x, data.x.float())


def test_cells_are_in_the_units_of_their_columns():
    columns = (Column(name="age", mean=30, scale=10), Column(name="c", categories=("x", "y")))
    assert (width_of(columns), spans(columns)) == (3, [slice(0, 1), slice(1, 3)])
    cells = cells_of(torch.tensor([[1.0, 0.2, 0.9], [-3.0, 0.4, 0.1]]), columns)
    assert cells.tolist() == [[40, 1], [0, 0]]
    assert [shown_cell(v, c) for v, c in zip(cells[0].tolist(), columns, strict=True)] == ["40", "y"]
    assert shown_cell(3e-7, columns[0]) == "0"


@pytest.mark.parametrize("name", NAMED)
def test_known_tables_need_no_file(name):
    data = load_dataset(DatasetSpec(name=name), SecretStream(b"0" * 16, "tables"))
    expected = {"breast_cancer": (569, 30, 2), "wine": (178, 13, 3), "made-table": (1200, 13, 2)}
    assert (*data.x.shape, data.classes) == expected[name]
    assert len(data.origins.unique(dim=0)) == len(data.x)
