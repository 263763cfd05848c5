"""The spec that `fdaudit init` writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fdaudit import protocols
from fdaudit.config import validate
from fdaudit.spec.draft import draft
from fdaudit.spec.schema import Spec, load_spec

NAMES = protocols.REGISTRY.names()


def drafted(name: str) -> str:
    return draft(name, protocols.REGISTRY.load(name).Config)


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_is_a_spec_with_every_default(name: str, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(drafted(name), encoding="utf-8")
    found = load_spec(tmp_path / "spec.yaml")
    assert found.model_copy(update={"protocol": Spec().protocol}) == Spec()
    config = protocols.REGISTRY.load(name).Config
    assert found.protocol.name == name
    assert validate(config, found.protocol.params) == config()


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_the_spec_and_of_the_protocol_is_in_it(name: str) -> None:
    text = drafted(name)
    config = protocols.REGISTRY.load(name).Config
    for field in (*Spec.model_fields, *config.model_fields):
        assert re.search(rf"^(    )?(# )?{field}:", text, re.MULTILINE), field


def test_what_is_commented_out_is_its_default_again_without_the_sign() -> None:
    core, _, rest = drafted("fedkd").partition("# Everything else")
    left = [name for name in Spec.model_fields if f"\n{name}:" not in core]
    known = re.compile(rf"# ({'|'.join(left)}):|#   |# - ")
    given = "\n".join(line.removeprefix("# ") for line in rest.splitlines() if known.match(line))
    found = yaml.safe_load(given)
    assert list(found) == left
    for field, value in found.items():
        default = Spec().model_dump(mode="json", exclude_none=True).get(field)
        assert value == (list(Spec().deviations) if field == "deviations" else default), field
