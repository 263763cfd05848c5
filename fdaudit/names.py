"""Names and texts that may come from a stranger: their grammar, and how any text is shown on one line.

A *text* is printable: it has no control character, line break, directional mark, half a character or other character
without a shape. A *name* is a text of 1 to 500 characters, without invisible characters, without a space at either end,
and with no part between slashes that is `.` or `..`. `module.layer1.0.bn1.running_mean`, `dense/kernel:0`,
`['params']['Dense_0']` and `acme/prototype-bank` are names.

`recording/recorder.py` has a copy of the grammar, because it imports nothing of fdaudit. A test compares the two.
"""

from __future__ import annotations

import re

__all__ = ["MOST_NAME", "name_problem", "text_problem", "visible"]

MOST_NAME = 500
"""Most characters of a name."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that Python counts as printable, and that show nothing."""


def text_problem(text: str) -> str:
    """Return what keeps a string from being a text, as a clause; empty if it is one."""
    if text.isprintable():
        return ""
    place = 0
    while text[place].isprintable():
        place += 1
    return f"holds the character U+{ord(text[place]):04X}, which does not print"


def name_problem(name: object) -> str:
    """Return what keeps a value from being a name, as a clause; empty if it is one."""
    if not isinstance(name, str):
        return "is no text"
    if not name:
        return "is empty"
    if len(name) > MOST_NAME:
        return f"has {len(name):,} characters, more than {MOST_NAME}"
    if problem := text_problem(name):
        return problem
    if odd := _INVISIBLE.search(name):
        return f"holds the character U+{ord(odd[0]):04X}, which is invisible"
    if name.strip() != name:
        return "begins or ends with a space"
    if not {".", ".."}.isdisjoint(name.split("/")):
        return "has a part that is '.' or '..'"
    return ""


def visible(text: str) -> str:
    """Return untrusted text on one line: characters that do not print are escaped, no-break spaces become plain."""
    if text.isprintable():
        return text
    plain = text.replace("\N{NO-BREAK SPACE}", " ")
    parts = []
    for character in plain:
        if character.isprintable():
            parts.append(character)
        else:
            parts.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(parts)
