"""Every place in the source where chance comes from: named children, secret streams, and raw sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROOMS = ("fdaudit", "attacks", "protocols", "defenses", "reports")
NAMED = {
    "child",
    "child_numpy",
    "child_seed",
    "SecretStream",
    "coins",
    "truth",
    "commit",
    "seed_from",
    "branch",
}
"""Called with the name of the draw."""
RAW = {
    *("manual_seed", "default_rng", "RandomState", "urandom", "uuid4", "set_state", "spawn", "seeded"),
    *("mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "token_bytes", "token_hex"),
}
"""Called with a seed, or with nothing."""


class Draw(NamedTuple):
    """One call: where it is, what is called, and the literal parts of the draw's name."""

    module: str
    call: str
    name: str


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def draws_in(path: Path) -> Iterator[Draw]:
    """Every draw of one file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and (called := _called(node)) in NAMED | RAW:
            parts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield Draw(path.relative_to(ROOT).as_posix(), called, "/".join(parts) if called in NAMED else "")


@cache
def draws() -> tuple[Draw, ...]:
    """Every draw of the five packages."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return tuple(d for path in paths for d in draws_in(path))
