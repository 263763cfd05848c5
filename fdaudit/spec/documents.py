"""Read untrusted YAML as plain data, once, in time that grows linearly with the document's length.

Guarantees:
  * a document that is too long or too deep, or whose aliases expand to too many values, is refused before it is
    built;
  * a duplicate key is refused, although PyYAML accepts it;
  * malformed input raises `SpecError` and no other error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fdaudit.errors import SpecError
from fdaudit.limits import MOST_TEXT, MOST_YAML_DEPTH, MOST_YAML_VALUES, YAML_BYTES, read_file

__all__ = ["from_yaml", "read_yaml"]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML was built with it
_Path = tuple[Any, ...]
"""A value's position: the path of its parent, and its name there. Written out, all paths could be longer than the
file."""


def read_yaml(path: Path, field: str) -> Any:
    """Return plain data from a YAML file.

    Args:
        path: the file.
        field: what it was given as, for errors.

    Raises:
        SpecError: it cannot be read, is too large, or `from_yaml` refuses it.
    """
    try:
        text = read_file(path, YAML_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = (
            "not UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else getattr(error, "strerror", None) or error
        )
        raise SpecError(
            field, str(path), f"cannot be read ({reason})", "Give the path of a YAML file."
        ) from None
    return from_yaml(text, str(path))


def from_yaml(text: str, source: str) -> Any:
    """Return plain data from YAML, after checks that PyYAML does not make.

    Raises:
        SpecError: it is not YAML, gives a key twice, or is too deep or too large.
    """
    try:
        depth = 0  # a large document is refused while it is parsed, before it is built
        for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.ScalarEvent) and len(event.value) > MOST_TEXT:
                problem = f"holds a value of {len(event.value):,} characters, more than {MOST_TEXT:,}"
                raise SpecError("spec", source, problem, "Shorten it.")
            if depth > MOST_YAML_DEPTH:
                raise SpecError("spec", source, f"is nested more than {MOST_YAML_DEPTH} deep", "Flatten it.")
            if count > 4 * MOST_YAML_VALUES:
                raise SpecError("spec", source, f"holds more than {MOST_YAML_VALUES:,} values", "Shorten it.")
        loader = _LOADER(text)
        try:
            document = loader.get_single_node()
            if document is None:
                return None
            _refuse_ambiguity(document, source)
            return loader.construct_document(document)
        finally:
            loader.dispose()
    # PyYAML raises its own errors, and passes on Python's for `!!int x`, `2020-13-45` and similar input.
    except (
        yaml.YAMLError,
        ValueError,
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        raise SpecError("spec", source, f"is not YAML: {problem}", "Mend the file.") from None


def _refuse_ambiguity(document: yaml.Node, source: str) -> None:
    """Refuse duplicate keys, and aliases that expand without bound."""
    pending: list[tuple[_Path, yaml.Node]] = [((), document)]
    count = 0
    while pending:
        where, node = pending.pop()
        if isinstance(node, yaml.SequenceNode):
            below = [((where, number), child) for number, child in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            keys = set[str]()
            for key, child in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value in keys:
                    names, path = [str(key.value)], where
                    while path:
                        path, name = path
                        names.append(str(name))
                    dotted = ".".join(reversed(names))
                    raise SpecError(dotted, child.value, "is a second value for one key", "Keep one of them.")
                keys.add(key.value)
            below = [((where, key.value), child) for key, child in node.value]
        else:
            continue
        count += len(below)
        if count > MOST_YAML_VALUES:
            problem = f"holds more than {MOST_YAML_VALUES:,} values once its aliases are written out"
            raise SpecError("spec", source, problem, "Shorten it.")
        pending += below
