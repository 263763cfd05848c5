"""Word pieces: how texts are cut, the numbers of pieces, and the vocabularies that are refused."""

from __future__ import annotations

import pytest
import torch

from fdaudit.data import load_dataset
from fdaudit.data.texts.wordpieces import PieceNumbering, Pieces, read_pieces
from fdaudit.errors import DataError, SpecError
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec, load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.types import PADDING, UNKNOWN

from ..helpers.bert_cases import PIECES, SIZES, write_bert
from ..helpers.run_cases import known
from ..helpers.text_cases import write_texts

pytest.importorskip("tokenizers")

VOCABULARY = Pieces(PIECES)


def cut(text, length=40):
    words = VOCABULARY.words
    row = PieceNumbering(length, VOCABULARY).rows([text])[0].tolist()
    return " ".join("[UNK]" if n == UNKNOWN else words[n] for n in row if n != PADDING)


# Pieces of `BertTokenizer` of transformers 5.24.0 (lower case) with the same vocabulary.
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("The captain played: sails!", "the captain play ##ed [UNK] sail ##s !"),
        ("UNAFFABLE name123, Été", "un ##aff ##able name ##1 ##2 ##3 , e ##t ##e"),
        ("e\u0301t", "e ##t"),
        ("東京ship $5", "東 京 ship $ [UNK]"),
        ("goal-keeper's", "goal - [UNK] ' [UNK]"),
        ("the\tbread\u00a0oven\u200b s\x00hip", "the bread oven ship"),
        ("x" * 100 + " team", "[UNK] team"),
        ("e" + "t" * 99, "e" + " ##t" * 99),
        ("e" + "t" * 100, "[UNK]"),
        ("ship name1zz", "ship [UNK]"),
        ("≠ship", "[UNK] ship"),
    ],
)
def test_texts_are_cut_as_the_published_tokenizer_cuts_them(text, pieces):
    assert cut(text, 200) == pieces


def test_special_pieces_written_out_in_a_text_are_plain_characters():
    assert cut("[MASK] [SEP]") == "[ mask ] [ [UNK] ]"


def test_texts_are_cut_and_padded_to_the_length():
    rows = PieceNumbering(3, VOCABULARY).rows(["unaffable ship", "sails", " "])
    words = VOCABULARY.words
    assert [[words[n] for n in row] for row in rows.tolist()] == [
        ["un", "##aff", "##able"],
        ["sail", "##s", "<pad>"],
        ["<unknown>", "<pad>", "<pad>"],
    ]
    assert rows.dtype == torch.int64


def test_padding_and_the_unknown_piece_come_first_and_the_others_in_the_files_order():
    assert VOCABULARY.words[:5] == ("<pad>", "<unknown>", "[unused0]", "[MASK]", "ship")
    assert [VOCABULARY.listed[n] for n in VOCABULARY.rows[:5]] == [
        *("[PAD]", "[UNK]", "[unused0]", "[MASK]", "ship")
    ]
    assert [VOCABULARY.listed[n] for n in VOCABULARY.marks] == ["[CLS]", "[SEP]"]
    assert sorted((*VOCABULARY.rows, *VOCABULARY.marks)) == list(range(len(PIECES)))


# -- vocabularies that are refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\nship\n", r"has no piece \[SEP\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n", "lists no piece of words"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nship\nship\n", "lists 'ship' twice"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n\nship\n", "an empty piece"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n<pad>\n", "or <pad>"),
        (b"\xff", "it is not UTF-8"),
        (b"", r"has no piece \[PAD\]"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    file = tmp_path / "vocab.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pieces(file, "dataset.wordpieces")


def test_lines_may_end_as_windows_ends_them(tmp_path):
    file = tmp_path / "vocab.txt"
    file.write_bytes("\r\n".join(PIECES).encode())
    assert read_pieces(file, "here") == VOCABULARY


# -- in a spec ----------------------------------------------------------------------------------------------------


def loaded(**given):
    return load_dataset(DatasetSpec(**given), SecretStream(b"0" * 16, "data"))


def test_a_dataset_is_cut_into_the_pieces_of_a_file_or_of_a_folder(tmp_path):
    write_texts(tmp_path / "a.csv")
    write_bert(tmp_path / "net")
    made = [
        loaded(name="text:a.csv", root=str(tmp_path), length=12, wordpieces=where)
        for where in ("net", "net/vocab.txt", str(tmp_path / "net"))
    ]
    assert {d.words for d in made} == {VOCABULARY.words}
    assert len({d.sha256() for d in made}) == 1
    assert made[0].x.shape == (120, 12)
    assert not (made[0].x == UNKNOWN).all(1).any()


@pytest.mark.parametrize("where", ["../net", "../net/vocab.txt"])
def test_a_path_that_leaves_the_folder_of_datasets_is_refused(tmp_path, where):
    write_bert(tmp_path / "net")
    (tmp_path / "data").mkdir()
    write_texts(tmp_path / "data" / "a.csv")
    with pytest.raises(DataError, match=r"^dataset\.wordpieces: .* leaves"):
        loaded(name="text:a.csv", root=str(tmp_path / "data"), wordpieces=where)


def test_an_absent_vocabulary_is_refused(tmp_path):
    write_texts(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"^dataset\.wordpieces: .*none' names"):
        loaded(name="text:a.csv", root=str(tmp_path), wordpieces="none")


def test_word_pieces_are_refused_for_images_and_beside_a_vocabulary(tmp_path):
    with pytest.raises(DataError, match=r"^dataset\.wordpieces: .* images"):
        loaded(wordpieces=str(write_bert(tmp_path)))
    with pytest.raises(SpecError, match=r"^dataset\.vocabulary: 8 .*`dataset\.wordpieces`"):
        DatasetSpec(name="ag_news", wordpieces="net", vocabulary=8)


def spec_of(folder, **changes):
    own = {
        "dataset": {
            "name": f"text:{write_texts(folder / 'a.csv')}",
            "length": 10,
            "wordpieces": str(write_bert(folder / "net")),
        },
        "splits": {"test": 0.2, "proxy": 0.1, "auxiliary": 0.1, "candidates": 4},
        "model": {"name": "pretrained", "params": {"path": str(folder / "net")}},
    }
    return load_spec(small_spec(**(own | changes)))


def test_no_text_of_a_run_changes_the_vocabulary(tmp_path):
    shares = {"test": 0.2, "proxy": 0.0, "auxiliary": 0.0, "candidates": 4}
    case = simulated_case(spec_of(tmp_path, splits=shares), known(0))
    assert case.dataset.words == VOCABULARY.words
    assert case.architecture.words == len(VOCABULARY.words)


def test_a_transformer_from_scratch_works_on_word_pieces(tmp_path):
    case = simulated_case(spec_of(tmp_path, model={"name": "transformer", "params": {"width": 4}}), known(0))
    assert case.architecture.words == len(VOCABULARY.words)


def test_a_pretrained_network_is_refused_for_words_of_the_runs_own(tmp_path):
    own = {"name": f"text:{write_texts(tmp_path / 'a.csv')}", "length": 10}
    with pytest.raises(SpecError, match=r"other words .*`dataset\.wordpieces`"):
        simulated_case(spec_of(tmp_path, dataset=own), known(0))


def test_files_of_a_network_lie_below_the_root_of_the_dataset(tmp_path):
    write_texts(tmp_path / "a.csv")
    write_bert(tmp_path / "net")
    own = {"name": "text:a.csv", "root": str(tmp_path), "length": 10, "wordpieces": "net"}
    model = {"name": "pretrained", "params": {"path": "net"}}
    case = simulated_case(spec_of(tmp_path, dataset=own, model=model), known(0))
    assert case.architecture.params["path"] == str(tmp_path / "net")
    assert case.spec.model.params == {"path": "net"}
    with pytest.raises(SpecError, match=r"^client_models\.1\.params\.path: .*gone' "):
        simulated_case(
            spec_of(
                tmp_path,
                dataset=own,
                model=model,
                protocol={"name": "feddf", "params": {"rounds": 1}},
                client_models=[model, {"name": "pretrained", "params": {"path": "gone"}}],
            ),
            known(0),
        )


def test_a_run_with_other_files_is_another_run(tmp_path):
    spec = spec_of(tmp_path)
    first = simulated_case(spec, known(0)).identity
    assert simulated_case(spec, known(0)).identity == first
    write_bert(tmp_path / "net", sizes={**SIZES, "n_heads": 4})
    assert simulated_case(spec, known(0)).identity != first
