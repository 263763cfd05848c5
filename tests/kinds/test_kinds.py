"""The vocabulary of message kinds: what an entry says of a message's tensors, and what follows from all entries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fdaudit.kinds import ANSWERS, KINDS, MODELS, UNDECLARED, WAYS, TensorForm, is_kind

TABLE = TensorForm(name="values", shapes=("n C",))


# -- one tensor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "shape", "sizes"),
    [
        (("n C",), (5, 3), {"n": 5, "C": 3}),
        (("n C",), (5,), None),
        (("n C",), (5, 3, 1), None),
        (("C C",), (3, 3), {"C": 3}),
        (("C C",), (3, 4), None),
        (("n C", "n"), (5,), {"n": 5}),
        (("n c h w",), (5, 1, 8, 9), {"n": 5, "c": 1, "h": 8, "w": 9}),
        (("",), (), {}),
        (("",), (1,), {}),
        (("",), (2,), None),
    ],
)
def test_a_letter_stands_for_one_size(shapes, shape, sizes) -> None:
    assert TensorForm(name="x", shapes=shapes).sizes(shape) == sizes


def test_the_words_of_a_tensor_name_its_shapes_and_when_it_is_sent() -> None:
    assert TABLE.text == "values (n, C)"
    form = TensorForm(name="a", shapes=("n", ""), when="where asked", meaning="what it is")
    assert form.text == "a (n,) or () where asked: what it is"


# -- one kind -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shapes", "problem"),
    [
        ("logits", {"values": (5, 3)}, ""),
        ("logits", {"values": (5, 3), "index": (5,)}, ""),
        ("logits", {"values": (5, 3), "z_max": ()}, ""),
        ("logits", {"values": None, "index": (5,)}, ""),
        ("logits", {"values": (5, 3), "index": (4,)}, "it has values (5, 3)"),
        ("logits", {"values": (5,)}, "it has values (5,)"),
        ("logits", {"index": (5,)}, "it has no tensor values"),
        ("class_counts", {"counts": (3,)}, ""),
        ("class_counts", {"counts": (3,), "more": (1,)}, "it has a tensor more"),
        ("class_prototypes", {"values": (3, 3)}, ""),
        ("class_prototypes", {"values": (3, 4)}, "it has values (3, 4)"),
        ("logit_cotangents", {}, ""),
        ("logit_cotangents", {"values": (5, 3), "gan_weight": ()}, ""),
        ("logit_cotangents", {"values": (5, 3, 8, 8)}, ""),
        ("private_labels", {"values": (5, 8, 8)}, ""),
        ("silence", {}, ""),
        ("silence", {"v": ()}, "it has a tensor v"),
        ("gradient", {"head.weight": (3, 4)}, ""),
    ],
)
def test_a_misfit_is_told_with_the_words_of_the_kind(kind, shapes, problem) -> None:
    found = KINDS[kind].misfit(shapes)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
    assert not found or KINDS[kind].text in found


def test_known_sizes_are_required() -> None:
    shapes = {"samples": (5, 1, 8, 8)}
    assert KINDS["generated_samples"].misfit(shapes, {"c": 1, "h": 8, "w": 8}) == ""
    assert KINDS["generated_samples"].misfit(shapes, {"c": 3, "h": 8, "w": 8})
    assert KINDS["logits"].misfit({"values": (5, 3)}, {"C": 4})
    assert KINDS["ensemble_labels"].misfit({"values": (5,)}, {"C": 4}) == ""


def test_sizes_are_read_off_a_message() -> None:
    assert KINDS["vote_counts"].sizes({"counts": (5, 3), "index": None}) == {"n": 5, "C": 3}
    assert KINDS["model_update"].sizes({"head.weight": (3, 4)}) == {}


# -- the vocabulary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_words_and_one_description(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert kind.text
    assert bool(kind.about) != bool(kind.tensors)
    assert len({tensor.name for tensor in kind.tensors}) == len(kind.tensors)


@pytest.mark.parametrize("name", KINDS)
def test_a_message_that_lists_samples_has_no_fixed_size(name: str) -> None:
    kind = KINDS[name]
    assert not (kind.fixed_size and any(tensor.name == "index" for tensor in kind.tensors))


def test_groups_follow_from_the_entries() -> None:
    assert WAYS["updates"] == (*MODELS, "optimizer_state")
    assert set(ANSWERS) < set(WAYS["answers"])
    assert set(UNDECLARED) == {"release", "silence"}
    assert all(WAYS.values())


def test_a_kind_is_known_or_has_a_namespace() -> None:
    assert is_kind("logits")
    assert is_kind("acme/prototype-bank")
    assert not is_kind("prototype-bank")
    assert not is_kind("Acme/bank")


def test_reading_the_vocabulary_imports_nothing_else() -> None:
    code = (
        "import sys\n"
        "import fdaudit.kinds\n"
        "ours = {m for m in sys.modules if m.startswith('fdaudit.') and not m.startswith('fdaudit.kinds')}\n"
        "assert not ours | ({'torch', 'numpy', 'pydantic'} & set(sys.modules)), ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
