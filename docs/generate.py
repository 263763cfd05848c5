"""Generator of documentation pages from the code: see `PAGES`.

Hand-written text on a protocol, attack or defence is in `docs/notes/` and is included in its page. `make docs` and
`make dist` write the pages beside the hand-written ones, where Git ignores them. To write the pages alone:

    .venv/bin/python docs/generate.py
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fdaudit.reports.text import kilobytes

from fdaudit import attacks, defenses, deviations, protocols
from fdaudit.cli.explain import Explanation, explained, sections, sights, when
from fdaudit.cli.starting import schemas
from fdaudit.config import Config
from fdaudit.data.datasets import LENGTH, VOCABULARY
from fdaudit.data.named import TORCHVISION, read_digits, read_digits_multilabel
from fdaudit.data.tables.named import NAMED, named_table
from fdaudit.data.tables.reading import LABEL
from fdaudit.kinds import KINDS
from fdaudit.models.zoo import _ZOO, _ZOO_OF_TEXTS, DENSE, FROM_FILES, architecture
from fdaudit.registry import AttackCard, DefenseCard, DeviationCard, ProtocolCard
from fdaudit.spec.card import Card
from fdaudit.spec.schema import ModelSpec, Spec
from fdaudit.tasks import SEGMENTATION, SINGLE_LABEL, TEXT
from fdaudit.twin.detectors import DETECTORS
from fdaudit.types import DefenseSpec

__all__ = ["PAGES", "guarantee", "results", "write"]

_NOTE = "<!-- Written by docs/generate.py from the code's docstrings. -->"
_HERE = Path(__file__).parent


def fields_page(config: type[Config], notes: str) -> str:
    """Return a page of all fields of a YAML file, below what is written by hand."""
    schema = config.model_json_schema()
    parts = [
        _note(f"docs/notes/{notes}"),
        "",
        _hand_written(notes),
        "## Fields",
        "",
        *_table(schema, schema["$defs"]),
    ]
    for name in _order(schema):
        definition = schema["$defs"][name]
        parts += ["", f"## {_TITLES[name]}", "", definition["description"], ""]
        parts += _table(definition, schema["$defs"])
    return "\n".join(parts) + "\n"


_TITLES = {
    "DatasetSpec": "dataset",
    "ColumnSpec": "dataset-columns",
    "PartitionSpec": "partition",
    "SplitSpec": "splits",
    "AuxiliarySpec": "auxiliary",
    "CanarySpec": "canaries",
    "ModelSpec": "model",
    "ProtocolSpec": "protocol",
    "OutageSpec": "outages",
    "DefenseEntry": "defenses",
    "DeviationEntry": "deviations",
    "AttackSpec": "attacks",
    "RecordRounds": "record",
    "AuditSpec": "audit",
    "LimitSpec": "limits",
    "GateSpec": "gates",
    "PresetSpec": "preset",
    "PrivacySpec": "privacy",
    "BudgetSpec": "privacy-budget",
    "TuningSpec": "privacy-tuning",
    "Attested": "attested",
    "Claim": "claims",
    "Facts": "training",
    "PreprocessFacts": "preprocess",
    "LossFacts": "training-loss",
    "ClipFacts": "training-clip",
    "ColumnFacts": "columns",
    "MessageFacts": "messages",
}


def _order(schema: Mapping[str, Any]) -> list[str]:
    """Return definitions in the order in which the spec's fields refer to them."""
    text = json.dumps([schema["properties"], schema["$defs"]])
    return sorted(schema["$defs"], key=lambda name: text.index(f"#/$defs/{name}"))


def settings_table(config: type[Config]) -> list[str]:
    """Return a Markdown table of a configuration's fields, or a sentence if it has none."""
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
        for within in (one["$ref"].rpartition("/")[2] for one in field.get("anyOf", ()) if "$ref" in one):
            if within not in _TITLES:  # its fields have no section of their own
                _, _, *below = _table(definitions[within], definitions)
                rows += [row.replace("| `", f"| `{name}.", 1) for row in below]
    return rows


def _below(field: Mapping[str, Any]) -> str:
    """Return the name of the definition that a field refers to."""
    return str(field["$ref"]).rpartition("/")[2]


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default", {})
    if value is None:
        return "none"
    if isinstance(value, dict):
        return "see below" if value else "empty"
    return "empty" if value == [] else f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(field: Mapping[str, Any]) -> str:
    """Return a JSON schema's type in words."""
    if "$ref" in field:
        title = _TITLES.get(_below(field))
        return f"[mapping](#{title})" if title else "mapping"
    if "anyOf" in field:
        return " or ".join(_type(f) for f in field["anyOf"] if f.get("type") != "null")
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "pattern" in field:
        return f"text like `{_escape(field['pattern'].strip('^$()'))}`"
    if "prefixItems" in field:
        return f"list of {', '.join(_type(item) for item in field['prefixItems'])}"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    return words.get(field["type"], "mapping") + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {_number(field[key])}" for key, sign in signs.items() if key in field]
    return " " + ", ".join(found) if found else ""


def _number(value: float) -> str:
    return (
        f"2^{value.bit_length() - 1}"
        if value in (2**63, 2**64)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


# -- a page for each protocol, attack and defence ----------------------------------------------------------------


def room_index(room: str) -> str:
    """Return the index page of a room: the text of `docs/notes/ROOM.md`, and a row for each name."""
    names = _ROOMS[room].names()
    rows = [_INDEX[room][1](explained(name)) for name in names]
    head = [f"| {' | '.join(_INDEX[room][0])} |", f"| {' | '.join('---' for _ in _INDEX[room][0])} |"]
    lines = [_note(f"docs/notes/{room}.md"), "", _hand_written(f"{room}.md"), *head]
    lines += [
        f"| [{name}]({name}.md) | {' | '.join(cells)} |" for name, cells in zip(names, rows, strict=True)
    ]
    return "\n".join(lines) + "\n"


def name_page(room: str, name: str) -> str:
    """Return the page of a protocol, an attack or a defence: its card, and the text of `docs/notes/ROOM/NAME.md`."""
    found, notes = explained(name), f"{room}/{name}.md"
    doc = found.doc.strip().replace("Guarantees:\n", "Guarantees:\n\n")
    lines = [_note(f"docs/notes/{notes}"), "", f"# {name}", "", doc, "", f"Source: {found.card.source}.", ""]
    lines += [
        re.sub(r"\{\{(table \|.*?)\}\}", _filled, _hand_written(notes)),
        *_BODY[room](found.card),
        "",
        "## Settings",
        "",
    ]
    lines += [f"Under `params`, beside `name: {name}`, in a [spec](../spec.md).", ""]
    # Facts of training are settings of FedAvg too; their tables are on the card's page.
    table = [row.replace("](#", "](../card.md#") for row in settings_table(_ROOMS[room].load(name).Config)]
    return "\n".join([*lines, *table]) + "\n"


def guarantee(name: str) -> str:
    """Return the ε that a defence gives: the first paragraph of its notes."""
    first = _hand_written(f"defences/{name}.md").partition("\n\n")[0]
    return " ".join(first.removeprefix("Guarantee:").split())


def _note(notes: str) -> str:
    return f"<!-- Written by docs/generate.py from the code and {notes}: change these. -->"


def _hand_written(notes: str) -> str:
    return (_HERE / "notes" / notes).read_text(encoding="utf-8").strip() + "\n"


def _one_line(found: Explanation) -> str:
    return _escape(" ".join(found.doc.strip().partition("\n\n")[0].split()))


def _kinds(kinds: Iterable[str]) -> str:
    return ", ".join(f"`{k}`" for k in kinds) or "nothing"


def _protocol_row(found: Explanation) -> list[str]:
    card = found.card
    seen = {s.position: s for s in sights(card)}
    server = _kinds(seen["server"].receives) if "server" in seen else "there is none"
    networks = "may differ" if card.heterogeneous else "the same"
    public = "needed" if card.needs_public else "not needed"
    public += ", with labels" if card.needs_labels else ""
    own = _kinds(d.name for d in protocols.REGISTRY.load(card.name).Config().defenses())
    return [_one_line(found), server, networks, public, own if own != "nothing" else "none"]


def _attack_row(found: Explanation) -> list[str]:
    card = found.card
    return [_one_line(found), card.goal, _needs(card), ", ".join(card.assumes) or "nothing"]


def _defence_row(found: Explanation) -> list[str]:
    card = found.card
    return [_one_line(found), card.at, guarantee(card.name)]


def _deviation_row(found: Explanation) -> list[str]:
    card = found.card
    readers = ", ".join(f"[{name}](../attacks/{name}.md)" for name in card.read_by)
    return [_one_line(found), ", ".join(card.roles), _kinds(card.changes), readers]


def _needs(card: AttackCard) -> str:
    return ", ".join(f"`{n}`" if n in KINDS else n for n in card.needs)


def _protocol(card: ProtocolCard) -> list[str]:
    lines = ["## Messages", "", "No message is sent."]
    if card.messages:
        lines[2:] = ["| From | To | Kind | When | What | Tensors |", "| --- | --- | --- | --- | --- | --- |"]
    for m in card.messages:
        only, what = when(m, "`") or "always", _escape(m["what"])
        lines.append(
            f"| {m['from']} | {m['to']} | `{m['kind']}` | {only} | {what} | {KINDS[m['kind']].text} |"
        )
    for section in sections(card, "`"):
        lines += _bullets(section.title, section.items)
    own = protocols.REGISTRY.load(card.name).Config().defenses()
    return lines + _bullets("Own defences, with the settings' defaults", [_own_defence(d) for d in own])


def _own_defence(entry: DefenseSpec) -> str:
    params = ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in entry.params.items())
    with_params = f" with {params}" if params else ""
    return f"`{entry.name}` on `{entry.kind}` of {entry.sender}{with_params}"


def _attack(card: AttackCard) -> list[str]:
    lines = ["## What it needs", "", f"- Goal: {card.goal}.", f"- Needs one of: {_needs(card)}."]
    if card.reads:
        lines.append(f"- Also reads, where in view: {', '.join(f'`{n}`' for n in card.reads)}.")
    lines.append(f"- Assumes that the adversary knows: {', '.join(card.assumes) or 'nothing'}.")
    lines.append(f"- Tasks: {', '.join(card.tasks)}.")
    if card.oracle:
        lines.append(f"- Asks an oracle for {card.oracle} labels where the adversary has one.")
    lines.append(f"- Positive control: {_tried_on(card)}.")
    for name, values in card.profiles.items():
        if values:
            lines.append(f"- Profile `{name}`: {', '.join(f'`{k}: {v}`' for k, v in values.items())}.")
    return lines


def _tried_on(card: AttackCard) -> str:
    return {
        "answers": "answers of a model that learnt auxiliary records under shifted labels",
        "average": "the mean of logits of four clients on public samples, one of which knows auxiliary records by "
        "heart",
        "candidates": "logits on auxiliary records of a client that knows half of them by heart",
        "classes": "the run's network, trained on as many auxiliary records as a client has, through its {through}",
        "comparisons": "gradients that compare auxiliary records with images near them",
        "discriminator": "a discriminator that knows auxiliary records by heart",
        "scores": "scores and gradients of a discriminator that learns auxiliary records step by step",
        "federation": "logits on public samples of a client that knows auxiliary records by heart",
        "generated": "generated samples that repeat auxiliary records under noise",
        "gradients": "undefended uploads of 2 clients or more with 8 auxiliary records in all or more, of the run's "
        "network, batch size and local steps",
        "labels": "the run's own protocol, undefended, with auxiliary records spread unevenly over its clients",
        "model": "auxiliary records learnt by heart under labels drawn at random",
        "neurons": "a gradient of auxiliary records at a model with a neuron for each candidate",
        "selector": "a client of the run's own protocol, undefended, whose selector is fitted to auxiliary records",
        "tables": "class means of FKD, of the run's network, from a client that knows auxiliary records by heart",
        "uploads": "gradients of FedAvg, of the run's network, from a client that trained on auxiliary records",
    }[card.control["on"]].format(**card.control)


def _defence(card: DefenseCard) -> list[str]:
    places = {"training": "training on a client's own records", "receipt": "messages that clients receive"}
    where = places.get(card.at, "messages")
    lines = ["## What it does", "", f"- Protects: {card.protects}.", f"- Acts at: {where}."]
    lines += [f"- Takes: {_kinds(card.accepts)}."] if card.accepts else []
    return lines + ([f"- Makes of them: `{card.makes}`."] if card.makes else [])


def _deviation(card: DeviationCard) -> list[str]:
    lines = [
        "## What it changes",
        "",
        f"- Who can: {', '.join(card.roles)}.",
        f"- Messages: {_kinds(card.changes)}.",
    ]
    able = [name for name in protocols.REGISTRY.names() if _fits(card, protocols.REGISTRY.describe(name))]
    lines += [f"- Protocols: {', '.join(f'[{name}](../protocols/{name}.md)' for name in able)}."]
    lines += [f"- Read by: {', '.join(f'[{name}](../attacks/{name}.md)' for name in card.read_by)}."]
    lines += [f"- What a receiver could notice: {card.noticed}"]
    return lines + [f"- Detector `{name}`: {DETECTORS[name].words}." for name in card.detectors]


def _fits(card: DeviationCard, protocol: ProtocolCard) -> bool:
    """Return whether a party of a protocol can deviate so."""
    return any(set(card.changes) & set(protocol.copies.get(role, ())) for role in card.roles)


def _bullets(title: str, items: Any) -> list[str]:
    return ["", f"## {title}", "", *(f"- {item.rstrip('.')}." for item in items)] if items else []


_ROOMS = {"protocols": protocols.REGISTRY, "attacks": attacks.REGISTRY, "defences": defenses.REGISTRY}
_ROOMS["deviations"] = deviations.REGISTRY
_BODY = {"protocols": _protocol, "attacks": _attack, "defences": _defence, "deviations": _deviation}
_INDEX = {
    "protocols": (
        (
            "Protocol",
            "In one line",
            "The server receives",
            "Clients' networks",
            "Public samples",
            "Own defences",
        ),
        _protocol_row,
    ),
    "attacks": (("Attack", "In one line", "Goal", "Reads one of", "Knows"), _attack_row),
    "defences": (("Defence", "In one line", "Acts at", "What ε it gives"), _defence_row),
    "deviations": (("Deviation", "In one line", "Who can", "Changes", "Read by"), _deviation_row),
}


# -- message kinds -------------------------------------------------------------------------------------------------


def kinds_page() -> str:
    """Return `docs/kinds.md`: the vocabulary, with what protocols and attacks declare of each kind."""
    lines = [
        _NOTE,
        "",
        "# Message kinds",
        "",
        "C is the number of classes, k of some of them, n of samples, (c, h, w) the shape of an image, L the number of",
        "tokens. A message may hold other tensors besides, except where the table says *only*. A fixed size follows",
        "from networks, classes and batch sizes. Other messages are as long as their list of samples.",
        "",
        "| Kind | Tensors | Size | Sent from | Read by |",
        "| --- | --- | --- | --- | --- |",
    ]
    receivers: dict[str, dict[str, set[str]]] = {}
    for found in map(protocols.REGISTRY.describe, protocols.REGISTRY.names()):
        for message in found.declared_messages:
            to = receivers.setdefault(message["kind"], {}).setdefault(message["from"], set())
            to.update(message["to"].split(", "))
    readers: dict[str, list[str]] = {}
    for found in map(attacks.REGISTRY.describe, attacks.REGISTRY.names()):
        for kind in (*found.needs, *found.reads):
            readers.setdefault(kind, []).append(f"[{found.name}](attacks/{found.name}.md)")
    for name, kind in KINDS.items():
        tensors = f"only {kind.text}" if kind.exact and kind.tensors else kind.text
        size = "fixed" if kind.fixed_size else "varies"
        sent = sorted(receivers.get(name, {}).items())
        routes = "; ".join(f"{sender} to {', '.join(sorted(to))}" for sender, to in sent)
        lines.append(f"| `{name}` | {tensors} | {size} | {routes} | {', '.join(readers.get(name, ()))} |")
    lines += [
        "",
        "A protocol or a recorded system may make up a kind with a namespace, such as `acme/prototype-bank`. No attack",
        "reads it. It counts as private unless its `inputs` say otherwise, and reports name it as untested.",
        "The [transcript](transcript.md) says how messages are kept.",
    ]
    return "\n".join(lines) + "\n"


# -- models and datasets -------------------------------------------------------------------------------------------


def models_page() -> str:
    """Return `docs/models.md`."""
    lines = [
        _NOTE,
        "",
        "# Models",
        "",
        "These models can be named under `model` in a [spec](spec.md).",
        "Layers and parameters are those for grey images of 28x28 pixels and ten classes. `unet` is for masks: it has",
        "an answer for each pixel, and the sides of its images are multiples of 2 to the power of `depth`.",
        "`transformer` is for texts: its parameters are those for 32 tokens, 8192 words and ten classes.",
        "`pretrained` is for texts too: its layers and their sizes are those of its files, see [text](text.md).",
        "`import:package.module:Class` names a class of your own below `torch.nn.Module`, or a function that makes a",
        "network; it is given `classes`, `num_classes`, `input_shape` and, for texts, `words` if it takes them, and",
        "`params` as keywords. `import:torchvision.models:resnet18` is such a name. Naming it runs its code.",
        "",
        "Before anything is written the network is tried on random inputs: a step in training, images in the memory",
        "format `channels_last`, halves of a batch, a batch of one, two models at once. This decides how it is",
        "trained, or refuses it in one line that names the layer.",
        "",
        "| Name | Layers | Parameters |",
        "| --- | --- | --- |",
    ]
    zoo = {**_ZOO, **_ZOO_OF_TEXTS}
    for name in sorted(zoo.keys() - set(FROM_FILES)):
        with torch.device("meta"):  # shapes only: no weight is drawn
            shape, task = ((1, 32, 32), SEGMENTATION) if name in DENSE else ((1, 28, 28), SINGLE_LABEL)
            given = ((LENGTH,), 10, TEXT, VOCABULARY) if name in _ZOO_OF_TEXTS else (shape, 10, task)
            module = architecture(ModelSpec(name=name), *given).build(torch.Generator())
        leaves = [m for m in module.modules() if not list(m.children())]
        count = sum(p.numel() for p in module.parameters())
        lines.append(f"| `{name}` | {_layers(leaves)} | {count:,} |")
    shown: dict[str, list[str]] = {}
    for name, (config, _) in sorted(zoo.items()):
        if config.model_fields:
            shown.setdefault("\n".join(settings_table(config)), []).append(f"`{name}`")
    for table, names in shown.items():
        lines += ["", f"## Settings of {', '.join(names)}", "", table]
    return "\n".join(lines) + "\n"


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


def datasets_page() -> str:
    """Return `docs/datasets.md`."""
    lines = [
        _NOTE,
        "",
        "# Datasets",
        "",
        "These datasets can be named under `dataset` in a [spec](spec.md). See [your own data](own-data.md) for yours.",
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
        "`test_labels`, `train_identities` if there are any (MedMNIST's layout). |"
    )
    lines.append(
        "| `npz:FILE` with labels (n, C) | C, several a record | FILE | ChestMNIST's layout: 1 where a class occurs, "
        "0 where it does not, -1 if unknown. |"
    )
    lines.append("| `folder:DIR` | one a sub-folder | DIR | Your own images, one sub-folder a class. |")
    lines.append(
        "| `masks:FILE` | 2, one a pixel | FILE | Your own: `images`, `instances`, and `source`, `picture` if there "
        "are any: see [segmentation](segmentation.md). |"
    )
    lines.append(
        "| `ag_news` | 4 | `ag_news.csv` | AG News (Zhang, Zhao & LeCun 2015): class 1 to 4, title, description, "
        "without a header; for non-commercial use. |"
    )
    lines.append(
        "| `sst2` | 2 | `sst2_train.tsv`, `sst2_dev.tsv` | SST-2 (Socher et al. 2013) as in GLUE: `sentence`, "
        "`label`; tested on dev. |"
    )
    lines.append(
        "| `text:FILE` | from its labels | FILE | Your own texts: a table with the columns `text` and `label`: "
        "see [text](text.md). |"
    )
    for name in sorted(NAMED):
        sheet, provenance = named_table(name)
        classes = len(set(sheet.columns[LABEL]))
        lines.append(f"| `{name}` | {classes} | nothing needed | A [table](tables.md). {provenance} |")
    lines.append("| `table:FILE` | from its labels | FILE | Your own [table](tables.md). |")
    return "\n".join(lines) + "\n"


def examples_page() -> str:
    """Return `docs/examples.md`: hand-written, with a row for each spec and grid from the comment that begins it."""
    lines = [
        _note("docs/notes/examples.md and the examples"),
        "",
        _hand_written("examples.md"),
        "| Spec or grid | What it shows | Data |",
        "| --- | --- | --- |",
    ]
    root = _HERE.parent
    for path in [
        *sorted((root / "fdaudit" / "quickstart").glob("*.yaml")),
        *sorted((root / "examples").glob("*.yaml")),
    ]:
        comment = _comment(path.read_text(encoding="utf-8"))
        subject = re.split(r"(?<=\.)\s+(?=[A-Z`])", comment, maxsplit=1)[0]
        data = "`FDAUDIT_DATA`" if "FDAUDIT_DATA" in comment else "digits"
        lines.append(f"| `{path.relative_to(root).as_posix()}` | {_escape(subject)} | {data} |")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """Return the comment that a YAML file begins with, as one line."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(filter(None, lines))


def quickstart_page() -> str:
    """Return `docs/quickstart.md`: hand-written, with the figures of `docs/quickstart.json`."""
    found = json.loads((_HERE / "quickstart.json").read_bytes())
    page = f"{_note('docs/notes/quickstart.md and docs/quickstart.json')}\n\n{_hand_written('quickstart.md')}"
    for mark, text in (("figures", _quickstart_figures(found)), ("times", _quickstart_times(found))):
        page = page.replace(f"<!-- {mark} -->", text)
    return page


def _quickstart_figures(found: Mapping[str, Any]) -> str:
    """Return the table of accuracies, bytes and verdicts of the last measured quickstart."""
    goals = ("reconstruction", "membership", "label-distribution", "model-extraction")
    head = ("Run", "Server", "Clients, mean", "Worst client", "Bytes", *goals)
    rows = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    for run in [*found["runs"], *found["references"]]:
        lines = ["" if run[key] is None else f"{run[key]:.1f} %" for key in ("server", "mean", "worst")]
        sent = kilobytes(run["bytes_sent"]) if "bytes_sent" in run else ""
        levels = [run.get("verdicts", {}).get(goal, "").replace("-", " ") for goal in goals]
        rows.append(f"| `{run['name']}` | {' | '.join([*lines, sent, *levels])} |")
    return "\n".join(rows)


def _quickstart_times(found: Mapping[str, Any]) -> str:
    """Return what the last measured quickstart took."""
    clock, processor = (
        f"{found[key] // 60} min {found[key] % 60} s" for key in ("clock_seconds", "processor_seconds")
    )
    return (
        f"The whole took {clock} on {found['cores']} cores ({found['machine']}), {processor} of processor time "
        f"(`{found['command']}`). Cells run side by side, each on one\nthread, "
        f"and the next run's federation beside them. `audit/` then holds {kilobytes(found['bytes'])}."
    )


# -- results and performance: hand-written conclusions, figures from `docs/results/` ---------------------------------


def results() -> list[dict[str, str]]:
    """Return the rows of `docs/results/index.csv`: a file, its subject, command, seeds, settings and remarks each."""
    return _records("index")


def conclusions_page(notes: str) -> str:
    """Return the page of `docs/notes/NOTES` with its placeholders filled from the data files.

    A placeholder names a kind and a file, and fields of its kind, between double braces, parted by `|`:

    - `table | FILE | ROWS | COLUMNS`: a table of these rows and columns, all of them by default; `X as Y` renames one.
    - `value | FILE | ROWS | COLUMN`: the cell of a row. ROWS must leave exactly one.
    - `count | FILE | ROWS`: the number of rows.
    - `distinct | FILE | COLUMN`: the number of different cells of a column.
    - `quote | FILE | TEXT`: the text, which must stand in a cell of the file, or in its settings or remarks.

    ROWS is `COLUMN = CELL or CELL; COLUMN = CELL`, and COLUMNS is parted by semicolons.

    Raises:
        ValueError: If a placeholder finds no row, more rows than it may, no such column, or no such text.
    """
    page = f"{_note(f'docs/notes/{notes} and docs/results/')}\n\n{_hand_written(notes)}"
    return re.sub(r"\{\{(.*?)\}\}", _filled, page)


def _filled(match: re.Match[str]) -> str:
    """Return the text of one placeholder."""
    kind, file, *fields = (part.strip() for part in match[1].split("|"))
    try:
        return _KINDS_OF_PLACEHOLDERS[kind](file, *fields)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(f"{match[0]}: {error!r}") from error


def _records(file: str) -> list[dict[str, str]]:
    with (_HERE / "results" / f"{file}.csv").open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def _selected(file: str, rows: str) -> list[dict[str, str]]:
    """Return the records of a file that meet every condition. Each allowed cell must occur."""
    records = _records(file)
    for condition in filter(None, (part.strip() for part in rows.split(";"))):
        column, _, cells = condition.partition(" = ")
        allowed = cells.split(" or ")
        absent = set(allowed) - {record[column] for record in records}
        if absent:
            raise ValueError(f"no row has {absent} in {column!r}")
        records = [record for record in records if record[column] in allowed]
    return records


def _table_of(file: str, rows: str = "", columns: str = "") -> str:
    records = _selected(file, rows)
    if not records:
        raise ValueError("no row is left")
    names = [part.strip() for part in columns.split(";")] if columns else list(records[0])
    pairs = [(name.partition(" as ")[0], name.partition(" as ")[2] or name) for name in names]
    lines = [f"|{'|'.join(title for _, title in pairs)}|", f"|{'|'.join('---' for _ in pairs)}|"]
    lines += [f"|{'|'.join(_escape(record[name]) for name, _ in pairs)}|" for record in records]
    return "\n".join(lines)


def _value(file: str, rows: str, column: str) -> str:
    (record,) = _selected(file, rows)
    return record[column]


def _quote(file: str, text: str) -> str:
    (entry,) = [entry for entry in results() if entry["file"] == f"{file}.csv"]
    cells = [cell for record in _records(file) for cell in record.values()]
    if not any(text in said for said in (entry["settings"], entry["remarks"], *cells)):
        raise ValueError("neither the file nor the index says so")
    return text


_KINDS_OF_PLACEHOLDERS: Mapping[str, Callable[..., str]] = {
    "table": _table_of,
    "value": _value,
    "count": lambda file, rows="": str(len(_selected(file, rows))),
    "distinct": lambda file, column: str(len({record[column] for record in _records(file)})),
    "quote": _quote,
}


def _published(schema: Callable[[], Mapping[str, Any]]) -> str:
    return json.dumps(schema(), indent=1, sort_keys=True) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "card.md": partial(fields_page, Card, "card.md"),
    "datasets.md": datasets_page,
    "examples.md": examples_page,
    "kinds.md": kinds_page,
    "models.md": models_page,
    "performance.md": partial(conclusions_page, "performance.md"),
    "privacy-table.md": partial(conclusions_page, "privacy-table.md"),
    "quickstart.md": quickstart_page,
    "results.md": partial(conclusions_page, "results.md"),
    "spec.md": partial(fields_page, Spec, "spec.md"),
    **{f"{name}.schema.json": partial(_published, schema) for name, schema in schemas().items()},
    **{f"{room}/index.md": partial(room_index, room) for room in _ROOMS},
    **{
        f"{room}/{name}.md": partial(name_page, room, name)
        for room, registry in _ROOMS.items()
        for name in registry.names()
    },
}
"""The generated pages, by their path below `docs/`."""


def write(directory: Path) -> None:
    """Write the generated pages below a directory, and remove pages of names that are gone.

    An unchanged page is not touched, so that Sphinx reads changed pages only.
    """
    for name, make in PAGES.items():
        path, text = directory / name, make()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for room in _ROOMS:
        for path in (directory / room).iterdir():
            if f"{room}/{path.name}" not in PAGES:
                path.unlink()


if __name__ == "__main__":
    write(_HERE)
