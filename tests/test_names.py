"""One grammar of names: what it accepts, and that the recorder's copy is the same."""

from __future__ import annotations

import sys

import pytest

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.names import name_problem, text_problem, visible
from fdaudit.recording.recorder import is_name

from .helpers.hostile_names import NAMES, NO_NAME, NO_TEXT


@pytest.mark.parametrize("name", NAMES)
def test_real_names_are_names(name: str) -> None:
    assert name_problem(name) == ""
    assert is_name(name)


@pytest.mark.parametrize("what", NO_NAME)
def test_no_name_is_refused_with_a_reason_of_one_line(what: str) -> None:
    problem = name_problem(NO_NAME[what])
    assert problem
    assert problem.isprintable()
    assert not is_name(NO_NAME[what])


@pytest.mark.parametrize("what", NO_TEXT)
def test_no_text_is_shown_on_one_line(what: str) -> None:
    text = NO_TEXT[what]
    assert text_problem(text)
    assert visible(text).isprintable()
    assert str(UsageError(text, text, text, text)).isprintable()
    assert str(IntegrityError([text])).isprintable()


@pytest.mark.parametrize("value", [None, 3, b"a", ["a"]])
def test_what_is_no_text_is_no_name(value: object) -> None:
    assert name_problem(value) == "is no text"
    assert not is_name(value)


@pytest.mark.thorough
def test_the_recorder_s_grammar_is_the_same_for_every_character() -> None:
    for number in range(sys.maxunicode + 1):
        name = f"a{chr(number)}b"
        assert is_name(name) == (name_problem(name) == ""), hex(number)


def test_the_recorder_s_grammar_is_the_same_for_every_character_of_small_number() -> None:
    for number in range(0x3000):
        for name in (f"a{chr(number)}b", f"{chr(number)}b", f"a{chr(number)}", chr(number)):
            assert is_name(name) == (name_problem(name) == ""), hex(number)
