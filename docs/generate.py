"""Writes `docs/spec.md`, `docs/protocols.md` and `docs/reference.md` from the code, to say what it does.

Run it after a change to the spec, a protocol, an attack, a defence, a model or a dataset:

    .venv/bin/python docs/generate.py

A test compares the pages on disk with what this makes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from fdaudit.reports.document import json_schema as report_json_schema

from fdaudit import attacks, defenses, protocols
from fdaudit.config import Config
from fdaudit.data.composed import read_digits_multilabel
from fdaudit.data.named import TORCHVISION, read_digits
from fdaudit.explain import card, sections, when
from fdaudit.guesses import schema
from fdaudit.messages import KINDS
from fdaudit.models.zoo import _ZOO, architecture
from fdaudit.registry import Registry
from fdaudit.spec import ModelSpec, Spec
from fdaudit.types import DefenseSpec

__all__ = [
    "PAGES",
    "guesses_schema",
    "protocols_page",
    "reference_page",
    "report_schema",
    "settings_table",
    "spec_page",
]

_NOTE = "<!-- Written by docs/generate.py. Change the code's docstrings, then run it again. -->"
_HERE = Path(__file__).parent

_SPEC_HEAD = f"""{_NOTE}

# The spec

A spec is a YAML file. It holds everything that a run depends on; `fdaudit run` takes it as its argument. Every field
of the first table has a default, so an empty file is a spec. Unknown keys, wrong types and impossible combinations are
refused before anything is written, with the field, the value and the nearest valid name.

```yaml
fdaudit: 1
name: A small audit
profile: quick
clients: 3
dataset:
  name: digits
model:
  name: mlp
protocol:
  name: fedavg
  params:
    rounds: 10
    upload: gradient
    batch_size: 4
adversaries: [server, world, server+client/0]
victims: 1
attacks:
  - name: analytic
  - name: loss-threshold
    adversaries: [world]
defenses:
  - kind: gradient
    sender: client
    name: gaussian-noise
    params:
      clip: 1.0
      sigma: 0.01
record:
  rounds: [0, 9]
gates:
  membership_auc: 0.6
```

What stands under `params` belongs to the protocol, attack, defence or model named beside it;
[protocols](protocols.md) and the [reference](reference.md) list these settings. YAML aliases and keys given twice are
refused. Where "none" stands as a default, the field may be left out or set to `null`.

A run keeps its spec as `spec.yaml`, with everything filled in that was left to a rule (`device`, `threads`,
`strategy`, `memory_format`) and the seed replaced by a salted commitment. That file is itself a spec.
"""

_REFERENCE_HEAD = f"""{_NOTE}

# Reference

What can be named in a [spec](spec.md) besides [protocols](protocols.md): attacks, defences, models and datasets, with
their settings. `fdaudit list` and `fdaudit explain NAME` print the same declarations. Settings go under `params`,
beside `name`.
"""

_PROTOCOLS_HEAD = f"""{_NOTE}

# Protocols

What each protocol sends, who sees it, and what it takes for granted. `fdaudit explain NAME` prints the same
declarations; a test runs every protocol and finds no message that is not declared. *Who sees what* is derived from the
messages: one that a setting decides counts as sent, and an adversary that is several parties at once sees what any of
them sees. Shapes are of n samples and C classes. Settings go under `protocol.params` in a [spec](spec.md).
"""


def spec_page() -> str:
    """`docs/spec.md`."""
    schema = Spec.model_json_schema()
    parts = [_SPEC_HEAD, "## Fields", "", *_table(schema, schema["$defs"])]
    for name in _order(schema):
        definition = schema["$defs"][name]
        parts += ["", f"## {_TITLES[name]}", "", definition["description"], ""]
        parts += _table(definition, schema["$defs"])
    return "\n".join(parts) + "\n"


_TITLES = {
    "DatasetSpec": "dataset",
    "PartitionSpec": "partition",
    "SplitSpec": "splits",
    "CanarySpec": "canaries",
    "ModelSpec": "model",
    "ProtocolSpec": "protocol",
    "OutageSpec": "outages",
    "DefenseEntry": "defenses",
    "AttackSpec": "attacks",
    "RecordRounds": "record",
    "GateSpec": "gates",
    "PresetSpec": "preset",
    "PrivacySpec": "privacy",
    "BudgetSpec": "privacy-budget",
}


def _order(schema: Mapping[str, Any]) -> list[str]:
    """Definitions in the order in which the spec's fields refer to them."""
    text = json.dumps([schema["properties"], schema["$defs"]])
    return sorted(schema["$defs"], key=lambda name: text.index(f"#/$defs/{name}"))


def settings_table(config: type[Config]) -> list[str]:
    """A Markdown table of a configuration's fields, or a sentence where it has none."""
    schema = config.model_json_schema()
    if not schema.get("properties"):
        return ["No settings."]
    return _table(schema, schema.get("$defs", {}))


def _table(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    rows = ["| Field | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, field in schema["properties"].items():
        default = _default(field) if name not in schema.get("required", ()) else "required"
        said = field.get("description") or definitions[_below(field)]["description"]
        meaning = _escape(" ".join(said.split()))
        rows.append(f"| `{name}` | {_type(field)} | {default} | {meaning} |")
    return rows


def _below(field: Mapping[str, Any]) -> str:
    """The name of the definition that a field refers to."""
    return str(field["$ref"]).rpartition("/")[2]


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default", {})
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "see below" if value else "empty"
    return "empty" if value == [] else f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(field: Mapping[str, Any]) -> str:
    """A JSON schema's type in words."""
    if "$ref" in field:
        title = _TITLES[_below(field)]
        return f"[mapping](#{title})"
    if "anyOf" in field:
        return " or ".join(_type(f) for f in field["anyOf"] if f.get("type") != "null")
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "pattern" in field:
        return f"text like `{_escape(field['pattern'].strip('^$()'))}`"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    return words.get(field["type"], "mapping") + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {_number(field[key])}" for key, sign in signs.items() if key in field]
    return " " + ", ".join(found) if found else ""


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}" if isinstance(value, float) else str(value)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


# -- the reference ---------------------------------------------------------------------------------------------


def reference_page() -> str:
    """`docs/reference.md`."""
    parts = [_REFERENCE_HEAD]
    parts += ["## Attacks", *_room(attacks.REGISTRY, _attack)]
    parts += ["", "## Defences", *_room(defenses.REGISTRY, _defence)]
    parts += ["", *_models(), "", *_datasets()]
    return "\n".join(parts) + "\n"


def protocols_page() -> str:
    """`docs/protocols.md`."""
    return (
        "\n".join([_PROTOCOLS_HEAD, *_table_of_protocols(), *_room(protocols.REGISTRY, _protocol, "##")])
        + "\n"
    )


def _room(
    registry: Registry, body: Callable[[Mapping[str, Any]], list[str]], level: str = "###"
) -> list[str]:
    lines = []
    for name in registry.names():
        found = card(name)
        doc = found["doc"].strip().replace("Guarantees:\n", "Guarantees:\n\n")
        lines += ["", f"{level} {name}", "", doc, "", f"Source: {found['source']}.", "", *body(found)]
        lines += ["", "Settings:", "", *settings_table(registry.load(name).Config)]
    return lines


def _table_of_protocols() -> list[str]:
    """What is sent at a glance: a row a protocol."""
    lines = [
        "| Protocol | Clients' networks | Public samples | Clients send | Own defences |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in protocols.REGISTRY.names():
        found = card(name)
        sent = dict.fromkeys(m["kind"] for m in found["messages"] if m["from"] == "client")
        kinds = ", ".join(f"`{k}`" for k in sent) or "nothing"
        networks = "may differ" if found["heterogeneous"] else "alike"
        public = "needed" if found["needs_public"] else "not needed"
        own = ", ".join(f"`{d.name}`" for d in protocols.REGISTRY.load(name).Config().defenses()) or "none"
        lines.append(f"| [{name}](#{name}) | {networks} | {public} | {kinds} | {own} |")
    return lines


def _protocol(found: Mapping[str, Any]) -> list[str]:
    lines = ["No message is sent."]
    if found["messages"]:
        lines = ["| From | To | Kind | When | What | Tensors |", "| --- | --- | --- | --- | --- | --- |"]
    for m in found["messages"]:
        only, what = when(m, "`") or "always", _escape(m["what"])
        lines.append(f"| {m['from']} | {m['to']} | `{m['kind']}` | {only} | {what} | {KINDS[m['kind']]} |")
    for section in sections(found, "`"):
        lines += _bullets(section.title, section.items)
    own = protocols.REGISTRY.load(found["name"]).Config().defenses()
    return lines + _bullets("Own defences, with the settings' defaults", [_own_defence(d) for d in own])


def _own_defence(entry: DefenseSpec) -> str:
    params = ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in entry.params.items())
    with_params = f" with {params}" if params else ""
    return f"`{entry.name}` on `{entry.kind}` of {entry.sender}{with_params}"


def _attack(found: Mapping[str, Any]) -> list[str]:
    lines = [f"- Goal: {found['goal']}."]
    lines.append(f"- Needs one of: {', '.join(found['needs'])}.")
    lines.append(f"- Assumes that the adversary knows: {', '.join(found['assumes']) or 'nothing'}.")
    lines.append(f"- Tasks: {', '.join(found['tasks'])}.")
    if found.get("oracle"):
        lines.append(f"- Asks an oracle for {found['oracle']} labels where the adversary has one.")
    lines.append(f"- Positive control: {_tried_on(found)}.")
    for name, values in found["profiles"].items():
        if values:
            lines.append(f"- Profile `{name}`: {', '.join(f'`{k}: {v}`' for k, v in values.items())}.")
    return lines


def _tried_on(found: Mapping[str, Any]) -> str:
    control = found.get("control", {"on": "model"})
    return {
        "classes": "classes that a model has seen and the adversary's auxiliary data lack, through its {through}",
        "discriminator": "a discriminator that knows auxiliary records by heart",
        "federation": "logits on public samples of a client that knows auxiliary records by heart",
        "generated": "generated samples that repeat auxiliary records under noise",
        "gradients": "the gradients of {images} single images, on an untrained `{model}`",
        "labels": "the run's own protocol, undefended, with auxiliary records spread unevenly over its clients",
        "model": "auxiliary records learnt by heart under labels drawn at random",
    }[control["on"]].format(**control)


def _defence(found: Mapping[str, Any]) -> list[str]:
    return [f"Protects: {found['protects']}.", "", f"Acts at: {found.get('at', 'message')}."]


def _bullets(title: str, items: Any) -> list[str]:
    return ["", f"{title}:", "", *(f"- {item.rstrip('.')}." for item in items)] if items else []


def _models() -> list[str]:
    lines = [
        "## Models",
        "",
        "Layers and parameters are those for grey images of 28x28 pixels and ten classes.",
        "`import:package.module:Class` names a class of your own that makes a `torch.nn.Module`; it is given `classes`",
        "and `input_shape` if its constructor takes them, and `params` as keywords. Naming a class runs its code.",
        "",
        "| Name | Layers | Parameters |",
        "| --- | --- | --- |",
    ]
    for name in sorted(_ZOO):
        with torch.device("meta"):  # shapes only: no weight is drawn
            module = architecture(ModelSpec(name=name), (1, 28, 28), 10).build(torch.Generator())
        leaves = [m for m in module.modules() if not list(m.children())]
        count = sum(p.numel() for p in module.parameters())
        lines.append(f"| `{name}` | {_layers(leaves)} | {count:,} |")
    shown: dict[str, list[str]] = {}
    for name, (config, _) in sorted(_ZOO.items()):
        if config.model_fields:
            shown.setdefault("\n".join(settings_table(config)), []).append(f"`{name}`")
    for table, names in shown.items():
        lines += ["", f"Settings of {', '.join(names)}:", "", table]
    return lines


def _layers(leaves: list[torch.nn.Module]) -> str:
    if len(leaves) > 12:
        kinds = Counter(type(m).__name__ for m in leaves if list(m.parameters()))
        return ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    return ", ".join(_layer(m) for m in leaves)


def _layer(module: torch.nn.Module) -> str:
    name = type(module).__name__
    if isinstance(module, torch.nn.Conv2d):
        stride = f" stride {module.stride[0]}" if module.stride[0] > 1 else ""
        return f"{name} {module.out_channels}@{module.kernel_size[0]}x{module.kernel_size[1]}{stride}"
    if isinstance(module, torch.nn.Linear):
        return f"{name} {module.out_features}"
    return name


def _datasets() -> list[str]:
    lines = [
        "## Datasets",
        "",
        "Relative names and torchvision's folders are looked up below `dataset.root`, else below the environment",
        "variable `FDAUDIT_DATA`, else in `fdaudit` below the user's cache folder. Nothing is downloaded unless",
        "`download: true`.",
        "",
        "| Name | Classes | Below the root | Source and licence |",
        "| --- | --- | --- | --- |",
        f"| `digits` | 10 | nothing needed | {read_digits().provenance} |",
        f"| `digits-multilabel` | 10, several a record | nothing needed | {read_digits_multilabel().provenance} |",
    ]
    for name, source in sorted(TORCHVISION.items()):
        lines.append(f"| `{name}` | {source.classes} | `{source.place}` | {source.provenance} |")
    lines.append(
        "| `npz:FILE` | from its labels | FILE | Your own: `train_images`, `train_labels`, and `test_images`, "
        "`test_labels` if there are any (MedMNIST's layout). |"
    )
    lines.append(
        "| `npz:FILE` with labels (n, C) | C, several a record | FILE | ChestMNIST's layout: 1 where a class occurs, "
        "0 where it does not, -1 where nobody knows. |"
    )
    lines.append("| `folder:DIR` | one a sub-folder | DIR | Your own images, one sub-folder a class. |")
    return lines


def guesses_schema() -> str:
    """The JSON schema of guesses from outside."""
    return json.dumps(schema(), indent=1, sort_keys=True) + "\n"


def report_schema() -> str:
    """The JSON schema of a report."""
    return json.dumps(report_json_schema(), indent=1, sort_keys=True) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "guesses.schema.json": guesses_schema,
    "protocols.md": protocols_page,
    "reference.md": reference_page,
    "report.schema.json": report_schema,
    "spec.md": spec_page,
}
"""The generated pages, by file name."""

if __name__ == "__main__":
    for name, make in PAGES.items():
        (_HERE / name).write_text(make(), encoding="utf-8")
