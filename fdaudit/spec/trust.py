"""Trust in code that files name by `import:module:Class`: nothing is imported that the user has not named.

A file that may be a stranger's (a run directory, a record, a card, a design, a grid, guesses) is data. The user trusts
the code in it by `--trust-code` or `FDAUDIT_TRUST_CODE=1`. A spec that the user gives is the user's own word.

Guarantees:
  * `refuse_code` refuses a document that names untrusted code, before anything is planned from it;
  * `refuse_untrusted` stands before every import of code by name, so a document that no one checked runs no code;
  * neither of them imports a module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fdaudit.errors import SpecError

__all__ = [
    "IMPORT",
    "TRUST_CODE",
    "importable",
    "name_code",
    "refuse_code",
    "refuse_untrusted",
    "trust_code",
    "trusted_code",
]

IMPORT = "import:"
"""The beginning of a name that says where a class is."""
TRUST_CODE = "FDAUDIT_TRUST_CODE"
"""The environment variable that trusts all code if it is 1."""

_ALL = "*"
_REMEDY = f"Read that code. If you trust it, add --trust-code, or set {TRUST_CODE}=1."
_named: set[str] = set()
"""The names of code that this process trusts; `_ALL` stands for every name."""


def trust_code(names: Iterable[str] = (_ALL,)) -> None:
    """Trust code in this process and in the workers that it gives work.

    Args:
        names: names of code; default: all code that any file names.
    """
    _named.update(names)


def name_code(document: object) -> None:
    """Trust the code that a document names, because the user gave it, as a spec or as an argument.

    Args:
        document: plain data: texts, numbers, lists and mappings.
    """
    _named.update(name for _, name in _code_in(document, ()))


def importable(name: str, field: str) -> str:
    """Return a name that the user gave as `import:module:name`, and make a file's folder importable, also for workers.

    Args:
        name: `import:module:name`, or `folder/file.py:name`.
        field: for the error.

    Raises:
        SpecError: it is neither, or there is no such file.
    """
    if name.startswith(IMPORT):
        return name
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py") or not attribute:
        raise SpecError(field, name, "names no function", "Write file.py:name, or import:module:name.")
    path = Path(file).resolve()
    if not path.is_file() or not path.stem.isidentifier():
        raise SpecError(field, name, "is no file of Python code", "Give its path, as file.py:name.")
    folder, inherited = str(path.parent), os.environ.get("PYTHONPATH", "")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if folder not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, inherited)))
    return f"{IMPORT}{path.stem}:{attribute}"


def trusted_code() -> list[str]:
    """Return the trusted names, sorted: what `trust_code` needs in another process."""
    return sorted(_named | ({_ALL} if os.environ.get(TRUST_CODE) == "1" else set()))


def refuse_code(document: object, where: str) -> None:
    """Refuse a document that names code that is not trusted.

    Args:
        document: plain data, from a file that may be a stranger's.
        where: the kind of document, as a prefix of its field names.

    Raises:
        SpecError: it names such code; the error names the field.
    """
    for path, name in _code_in(document, (where,)):
        refuse_untrusted(name, ".".join(path))


def refuse_untrusted(name: str, field: str) -> None:
    """Refuse a name of code that is not trusted; accept every other name.

    Raises:
        SpecError: the name is not trusted.
    """
    trusted = trusted_code()
    if name.startswith(IMPORT) and name not in trusted and _ALL not in trusted:
        raise SpecError(field, name, "is code that you have not named yourself", _REMEDY)


def _code_in(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text in plain data that names code, with its path."""
    if isinstance(value, str):
        if value.startswith(IMPORT):
            yield path, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _code_in(below, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, below in enumerate(value):
            yield from _code_in(below, (*path, str(number)))
