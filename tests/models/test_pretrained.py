"""BERT and DistilBERT from local files: the published states, training, and the files that are refused."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fdaudit.data.texts.wordpieces import PieceNumbering, read_pieces
from fdaudit.errors import SpecError
from fdaudit.models import Network, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import TEXT
from fdaudit.training.private_step import _taken, per_sample_gradients, unfit
from fdaudit.types import PADDING

from ..helpers.bert_cases import PIECES, SIZES, weights, write_bert
from ..helpers.refusals import refused

pytest.importorskip("transformers")

LENGTH, CLASSES = 10, 3
WORDS = len(PIECES) - 2  # [CLS] and [SEP] are no words
TEXTS = ("The captain played: sails! Été name12", "a ship of ≠ the crew", "goal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert") / "net")


def arch(folder, length=LENGTH, words=WORDS, **params):
    given = ModelSpec(name="pretrained", params={"path": str(folder), **params})
    return architecture(given, (length,), CLASSES, TEXT, words)


def built(folder, seed=0, **changes):
    return arch(folder, **changes).build(child(seed, "model"))


def read(folder, texts=TEXTS, length=LENGTH):
    return PieceNumbering(length, read_pieces(folder / "vocab.txt", "here")).rows(texts)


# -- what it computes ------------------------------------------------------------------------------------------------

# The last states of `DistilBertModel` of transformers 5.24.0 for the first text and these very weights, read from the
# same files: all entries of [CLS], and the first four of the first word and of [SEP]. Its `BertTokenizer` gives the
# pieces.
PUBLISHED_PIECES = [
    "the",
    "captain",
    "play",
    "##ed",
    "[UNK]",
    "sail",
    "##s",
    "!",
    "e",
    "##t",
    "##e",
    "name",
    "##1",
    "##2",
]
PUBLISHED_CLS = (
    *(0.605132, 0.312090, -0.332136, 0.892620, -0.595858, 0.536618, -0.375131, 1.100138),
    *(0.559901, -1.747849, 1.424071, 0.108457, -1.503287, 1.015004, -1.348702, -0.621476),
)
PUBLISHED_WORD = (-0.296173, 0.839524, -0.441669, 0.035785)
PUBLISHED_SEP = (0.986554, -0.056178, -0.185528, 0.916230)


@pytest.mark.parametrize("length", [10, 14])
@pytest.mark.parametrize("prefix", ["", "distilbert."])
def test_states_are_those_of_the_published_implementation(tmp_path, prefix, length):
    folder = write_bert(tmp_path, prefix=prefix)
    x = read(folder, TEXTS[:1], 10)
    x = F.pad(x, (0, length - 10), value=PADDING)
    pieces = read_pieces(folder / "vocab.txt", "here").words
    assert [pieces[n] if n > 1 else "[UNK]" for n in x[0, :10].tolist()] == PUBLISHED_PIECES[:10]
    model = built(folder, length=length)
    states = model.extractor.states(x)[0]
    torch.testing.assert_close(states[0], torch.tensor(PUBLISHED_CLS), rtol=0, atol=1e-5)
    torch.testing.assert_close(states[1, :4], torch.tensor(PUBLISHED_WORD), rtol=0, atol=1e-5)
    torch.testing.assert_close(states[11, :4], torch.tensor(PUBLISHED_SEP), rtol=0, atol=1e-5)
    torch.testing.assert_close(model(x), model.head(states[:1]))


def write_plain_bert(folder):
    """Write a small BERT as transformers saves it, and return it."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertForMaskedLM(BertConfig(**small, vocab_size=len(PIECES), max_position_embeddings=20)).eval()
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    return model.bert


def test_states_of_bert_are_those_of_the_model_that_was_saved(tmp_path):
    saved = write_plain_bert(tmp_path)
    x = read(tmp_path)
    listed = read_pieces(tmp_path / "vocab.txt", "here").rows
    start, end = PIECES.index("[CLS]"), PIECES.index("[SEP]")
    found = built(tmp_path).extractor.states(x)
    for row, states in zip(x.tolist(), found, strict=True):
        pieces = [start, *(listed[n] for n in row if n != PADDING), end]
        wanted = saved(torch.tensor([pieces])).last_hidden_state[0]
        torch.testing.assert_close(states[: len(pieces)], wanted, rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_private_training_accepts_bert(tmp_path):
    write_plain_bert(tmp_path)
    assert unfit(built(tmp_path), (LENGTH,), words=WORDS) is None


def test_padding_changes_no_answer(folder):
    x = read(folder)
    longer = F.pad(x, (0, 4), value=PADDING)
    model, wide = built(folder), built(folder, length=LENGTH + 4)
    torch.testing.assert_close(model(x), wide(longer))


def test_only_the_head_is_drawn(folder):
    one, again, other = built(folder), built(folder), built(folder, 1)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
        assert torch.equal(tensor, other.state_dict()[name]) == name.startswith("extractor."), name
    assert all(p.requires_grad for p in one.parameters())


def test_rows_of_the_embedding_are_in_the_order_of_the_datasets_words(folder):
    table = weights()["embeddings.word_embeddings.weight"]
    extractor = built(folder).extractor
    words = read_pieces(folder / "vocab.txt", "here").words
    names = ["[PAD]", "[UNK]", *words[2:]]
    assert torch.equal(extractor.embedding.weight, table[[PIECES.index(name) for name in names]])
    assert torch.equal(extractor.marks.weight, table[[PIECES.index("[CLS]"), PIECES.index("[SEP]")]])
    assert not {"[CLS]", "[SEP]"} & set(words)


def test_words_that_do_not_occur_and_padding_have_no_gradient(folder):
    model, x = built(folder), read(folder)
    model(x).square().sum().backward()
    rows = model.extractor.embedding.weight.grad.abs().sum(1) > 0
    assert rows.nonzero().flatten().tolist() == sorted(set(x.flatten().tolist()) - {PADDING})


def test_texts_of_padding_alone_have_finite_answers(folder):
    assert built(folder)(torch.zeros(2, LENGTH, dtype=torch.int64)).isfinite().all()


def test_half_precision_files_are_read_as_single_precision(tmp_path):
    model = built(write_bert(tmp_path, tensors={n: t.half() for n, t in weights().items()}))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_older_names_of_layer_norms_are_read(tmp_path):
    older = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in weights().items()
    }
    model = built(write_bert(tmp_path, tensors=older))
    assert torch.equal(
        model.extractor.body.embeddings.LayerNorm.weight, weights()["embeddings.LayerNorm.weight"]
    )


# -- how training treats it ------------------------------------------------------------------------------------------


def test_many_networks_advance_at_once_as_they_do_alone(folder):
    model, x, y = built(folder), read(folder), torch.tensor([0, 1, 2])

    def loss(parameters, x):
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    own = {n: torch.stack([p.detach(), p.detach()]) for n, p in model.named_parameters()}
    together = vmap(grad(loss))(own, torch.stack([x, x.flip(0)]))
    for k, texts in enumerate([x, x.flip(0)]):
        wanted = torch.autograd.grad(F.cross_entropy(model(texts), y), list(model.parameters()))
        for name, expected in zip(own, wanted, strict=True):
            torch.testing.assert_close(together[name][k], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.thorough
def test_private_training_accepts_it_after_every_trial(folder):
    assert unfit(built(folder), (LENGTH,), words=WORDS) is None


@pytest.mark.thorough
def test_gradients_of_single_texts_are_those_of_plain_differentiation(folder):
    model, x, y = built(folder), read(folder), torch.tensor([0, 1, 2])
    free = dict(model.named_parameters())
    with per_sample_gradients(model):
        F.cross_entropy(model(x), y, reduction="sum").backward()
        found = _taken(free, 3)
    for k in range(3):
        loss = F.cross_entropy(model(x[k : k + 1]), y[k : k + 1])
        for name, expected in zip(free, torch.autograd.grad(loss, list(free.values())), strict=True):
            torch.testing.assert_close(found[name][k], expected, rtol=1e-3, atol=1e-5)


def test_it_is_an_extractor_and_a_head_and_its_shapes_need_no_weights(folder):
    model, x = built(folder), read(folder)
    assert isinstance(model, Network)
    torch.testing.assert_close(model.head(model.features(x)), model(x))
    made = arch(folder)
    assert made.parameter_shapes == {n: tuple(p.shape) for n, p in model.named_parameters()}


# -- its files --------------------------------------------------------------------------------------------------------


def test_a_relative_path_lies_below_the_folder_of_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path))
    made = arch("nets/tiny") if write_bert(tmp_path / "nets" / "tiny") else None
    assert made.params["path"] == str(tmp_path / "nets" / "tiny")
    monkeypatch.setenv("FDAUDIT_DATA", "/nowhere")  # as in a process that attacks
    assert made.build(child(0, "m"))(torch.ones(1, LENGTH, dtype=torch.int64)).shape == (1, CLASSES)


def test_a_path_that_leaves_the_folder_of_datasets_is_refused(tmp_path, monkeypatch):
    write_bert(tmp_path / "outside")
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FDAUDIT_DATA", str(tmp_path / "data"))
    refused(lambda: arch("../outside"), "model.params.path", said="'../outside' leaves the data folder")
    write_bert(tmp_path / "data" / "linked")
    (tmp_path / "data" / "linked" / "config.json").unlink()
    (tmp_path / "data" / "linked" / "config.json").symlink_to(tmp_path / "outside" / "config.json")
    refused(lambda: arch("linked"), "model.params.path", said="leaves")


def test_the_digest_covers_every_file_and_is_checked(tmp_path):
    first = arch(write_bert(tmp_path))
    assert (first.source, len(first.source)) == (first.params["sha256"], 64)
    assert arch(tmp_path, sha256=first.source) == first
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "n_heads": 4, "vocab_size": len(PIECES)}))
    assert arch(tmp_path).source != first.source
    refused(lambda: first.build(child(0, "m")), "model.params.sha256", said="is not the digest")


def _pickled(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def _changed(folder, name, change):
    write_bert(folder, tensors={**weights(), name: change(weights()[name])})


def _without(folder, name):
    save_file({n: t for n, t in weights().items() if n != name}, folder / "model.safetensors")


def _sizes(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**SIZES, "vocab_size": len(PIECES), **changes}))


LIN = "transformer.layer.1.attention.q_lin.weight"
WRONG = {
    "no folder": (lambda f: f.rename(f.with_name("gone")), "is no folder"),
    "no sizes": (lambda f: (f / "config.json").unlink(), r"has no config\.json"),
    "no vocabulary": (lambda f: (f / "vocab.txt").unlink(), r"has no vocab\.txt"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"has no model\.safetensors"),
    "a pickle": (_pickled, r"pytorch_model\.bin, a pickle that may run code, is not read"),
    "bytes for weights": (lambda f: (f / "model.safetensors").write_bytes(b"x" * 64), "is no safetensors"),
    "a folder for weights": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
        "cannot be read",
    ),
    "a missing tensor": (lambda f: _without(f, LIN), f"has no tensor {LIN}"),
    "another shape": (lambda f: _changed(f, LIN, lambda t: t[1:].clone()), r"as float32 \(15, 16\)"),
    "whole numbers": (lambda f: _changed(f, LIN, lambda t: t.long()), "as int64"),
    "NaN": (lambda f: _changed(f, LIN, lambda t: t * float("nan")), "holds NaN or infinite"),
    "another network": (
        lambda f: _sizes(f, model_type="gpt2"),
        "model_type: Input should be 'bert' or 'distilbert'",
    ),
    "another activation": (lambda f: _sizes(f, activation="relu"), "activation: Input should be 'gelu'"),
    "heads that do not fit": (
        lambda f: _sizes(f, n_heads=3),
        "states of 16 entries are not divided by 3 heads",
    ),
    "too wide": (lambda f: _sizes(f, dim=8192), "dim: Input should be less than or equal to 4096"),
    "too deep": (lambda f: _sizes(f, n_layers=3), r"has no tensor transformer\.layer\.2"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "is no JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "describes neither BERT nor DistilBERT"),
    "another vocabulary size": (lambda f: _sizes(f, vocab_size=99), "config.json says vocab_size 99"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_one_clear_error(tmp_path, case):
    folder = write_bert(tmp_path / "net")
    spoil, message = WRONG[case]
    spoil(folder)
    with pytest.raises(SpecError, match=message) as caught:
        arch(folder)
    assert caught.value.field == "model.params.path"


def test_oversized_files_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setenv("FDAUDIT_MOST_TENSOR_BYTES", "100")
    with pytest.raises(SpecError, match="FDAUDIT_MOST_TENSOR_BYTES raises that"):
        arch(folder)


def test_texts_longer_than_its_positions_are_refused(folder):
    with pytest.raises(SpecError, match=r"18 .* 19"):
        arch(folder, length=19)


def test_texts_in_other_words_are_refused(folder):
    words = read_pieces(folder / "vocab.txt", "here").words
    for other in (WORDS + 1, (*words[:-2], words[-1], words[-2])):
        with pytest.raises(SpecError, match=r"other words .*`dataset\.wordpieces`"):
            arch(folder, words=other)
    assert arch(folder, words=words) == arch(folder)


def test_it_is_refused_for_images_and_without_a_path(folder):
    spec = ModelSpec(name="pretrained", params={"path": str(folder)})
    refused(lambda: architecture(spec, (1, 8, 8), 3), "model.name", "pretrained")
    with pytest.raises(SpecError, match=r"model\.params\.path"):
        architecture(ModelSpec(name="pretrained"), (LENGTH,), 3, TEXT, WORDS)
