"""What the fuzzer changes, and what reading it means: every kind of file that fdaudit takes from a stranger."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

import fdaudit
from fdaudit.adversary.view import View, open_view
from fdaudit.api import load
from fdaudit.attestation.check import verify_bundle
from fdaudit.attestation.keys import public_key
from fdaudit.audit.guesses import guesses_and_digest, to_guesses
from fdaudit.audit.red_team import export_view
from fdaudit.audit.utility.table import utility_table
from fdaudit.data import load_dataset
from fdaudit.errors import IntegrityError
from fdaudit.importing.records import import_record
from fdaudit.planning.brought import read_records
from fdaudit.rng import child
from fdaudit.spec.schema import DatasetSpec, load_spec
from fdaudit.storage import cache
from fdaudit.storage.files import decode, encode, header, load_json
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.sweeps.grid import expand, load_grid
from fdaudit.sweeps.index import read_index
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.manifest import read_manifest, verify
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.design_cases import write_key
from ..helpers.evidence_cases import keypair
from ..helpers.rerecorded import card_of, rerecord
from ..helpers.run_cases import finished
from ..helpers.sweep_cases import grid
from .fuzzing import Target

SHAPE = (1, 8, 8)
QUANTISED: Mapping[str, Any] = {
    "splits__proxy": 0.3,
    "protocol": {
        "name": "fedkd",
        "params": {
            "local_epochs": 1,
            "batch_size": 16,
            "distill_rounds": 1,
            "distill_steps": 1,
            "distill_batch_size": 8,
        },
    },
}
"""Messages of every shape: counts, quantised logits, ensembles, a model."""


def targets(folder: Path) -> dict[str, Target]:
    """Every target by its name, its template made below a folder."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "urandom", random.Random(0).randbytes
        )  # the same salts, and so the same files, every time
        patch.setattr(os, "fsync", lambda descriptor: None)
        run = finished(folder / "run", **QUANTISED)
    handed_out = export_view(load(run), "server", folder / "handout")
    return {
        **_of_a_record(folder, run, handed_out),
        **_of_documents(folder, handed_out),
        **_of_data(folder),
        **_of_conclusions(folder, run),
        **_of_imports(folder, run),
        "cache": _cached(folder / "cache"),
    }


def _copied(folder: Path, *sources: Path) -> Path:
    folder.mkdir()
    for source in sources:
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, folder / source.name)
    return folder


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors as what can be compared, NaN included."""
    found = {}
    for name, tensor in tensors.items():
        values = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        found[name] = (str(tensor.dtype), tuple(tensor.shape), values)
    return found


# -- the record -------------------------------------------------------------------------------------------------


def _of_a_record(folder: Path, run: Path, handed_out: Path) -> dict[str, Target]:
    record = _copied(
        folder / "record",
        run / "transcript",
        *(run / n for n in ("manifest.json", "spec.yaml", "utility.csv")),
    )
    lines = folder / "lines"
    lines.mkdir()
    shutil.copyfile(run / "transcript" / "messages.jsonl", lines / "messages.jsonl")
    payloads = folder / "payloads"
    payloads.mkdir()
    for message in read_messages(run / "transcript"):
        (payloads / f"{message.seq}.safetensors").write_bytes(read_payload(run / "transcript", message))
    log, written = ("transcript/messages.jsonl",), ("transcript/payloads/*",)
    return {
        "log": Target(record, _verified, log, covered=True),
        "payload": Target(record, _verified, written, covered=True),
        "manifest": Target(record, _verified, ("manifest.json",), covered=True),
        "covered": Target(record, _verified, ("spec.yaml", "utility.csv"), covered=True),
        "line": Target(lines, _lines),
        "tensors": Target(payloads, _tensors),
        "view": Target(handed_out / "view", _seen),
    }


def _verified(record: Path) -> object:
    """What a record says once `verify` finds nothing: its manifest, every message and tensor, what lies beside."""
    if findings := verify(record):
        raise IntegrityError(findings)
    transcript = record / "transcript"
    messages = list(read_messages(transcript))
    sent = [_plain(readable(decode(read_payload(transcript, m)))) for m in messages]
    beside = [(record / name).read_bytes() for name in ("spec.yaml", "utility.csv")]
    return read_manifest(record), messages, sent, beside


def _lines(folder: Path) -> object:
    """Messages as they are read; each has one form, so that nothing is read that would be written otherwise."""
    messages = list(read_messages(folder))
    again = b"".join(m.to_line() for m in messages)
    assert again == (folder / "messages.jsonl").read_bytes()
    return messages


def _tensors(folder: Path) -> object:
    """Tensors that a stranger's digest covers: right or wrong, they are tensors, or damage."""
    found = []
    for path in sorted(folder.glob("[0-9]*.safetensors")):
        if (
            path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 30
        ):  # as the line and its limit refuse
            raise IntegrityError(["no payload"])
        payload = path.read_bytes()
        header(payload)
        found.append(_plain(readable(decode(payload))))
    return found


def _seen(folder: Path) -> object:
    view: View = open_view(folder)
    sent = [_plain(view.tensors(m)) for m in view.messages]
    own = {party: _plain({"x": x, "y": y}) for party, (x, y) in view.own_data.items()}
    return view.name, view.members, view.parties, view.hyperparameters, view.messages, view.sizes, sent, own


# -- documents ----------------------------------------------------------------------------------------------------


def _of_documents(folder: Path, handed_out: Path) -> dict[str, Target]:
    spec, sweep, index = (folder / name for name in ("spec", "sweep", "index"))
    for made in (spec, sweep, index):
        made.mkdir()
    (spec / "spec.yaml").write_text(yaml.safe_dump(small_spec(**QUANTISED)))
    wanted = grid()
    (sweep / "base.yaml").write_text(yaml.safe_dump(wanted.pop("base")))
    (sweep / "grid.yaml").write_text(yaml.safe_dump({**wanted, "base": "base.yaml"}))
    cell = {
        "key": "0" * 16,
        "protocol": "fedavg",
        "defence": "none",
        "epsilon": "inf",
        "seed": 1,
        "status": "pending",
    }
    (index / "sweep.json").write_text(
        json.dumps({"schema": "fdaudit-sweep/1", "version": "0", "grid": wanted, "runs": [cell]})
    )
    return {
        "spec": Target(spec, lambda f: load_spec(f / "spec.yaml").model_dump()),
        "sweep": Target(sweep, lambda f: [cell.key for cell in expand(load_grid(f / "grid.yaml"))]),
        "index": Target(index, lambda f: read_index(f).model_dump(), ("sweep.json",)),
        "guesses": Target(
            _guesses(folder / "guesses", handed_out), _guessed, ("guesses*.json", "images.safetensors")
        ),
    }


def _guesses(folder: Path, handed_out: Path) -> Path:
    """A file of each kind of guesses."""
    folder.mkdir()
    card = json.loads((handed_out / "card.json").read_bytes())
    about = {
        "schema": "fdaudit-guesses/1",
        "name": "mine",
        "adversary": "server",
        "view": card["view_sha256"],
    }
    kinds: dict[str, list[dict[str, Any]]] = {
        "membership": [{"target": "client/0", "challenge": "0" * 64, "scores": [0.5, 1, -2e3]}],
        "label_distribution": [{"target": "client/0", "distribution": [0.1] * 10}],
        "reconstruction": [{"target": "client/0", "messages": [1, 2], "images": "images.safetensors"}],
    }
    for kind, guess in kinds.items():
        (folder / f"guesses-{kind}.json").write_text(json.dumps({**about, kind: guess}))
    images = torch.rand(2, *SHAPE, generator=child(0, "fuzz"))
    (folder / "images.safetensors").write_bytes(encode({"images": images}))
    return folder


def _guessed(folder: Path) -> object:
    found = []
    for kind in ("membership", "label_distribution", "reconstruction"):
        given, _ = guesses_and_digest(folder / f"guesses-{kind}.json")
        made = to_guesses(given, folder, SHAPE)
        found.append((given.model_dump(), [str(guess) for guess in made]))
    return found


# -- data -------------------------------------------------------------------------------------------------------


def _of_data(folder: Path) -> dict[str, Target]:
    packed, pictures = folder / "npz", folder / "pictures"
    packed.mkdir()
    draws = np.random.default_rng(0)
    arrays = {
        "train_images": draws.integers(0, 256, (20, 8, 8), dtype=np.uint8),
        "train_labels": (np.arange(20) % 4).astype(np.uint8)[:, None],
    }
    np.savez(packed / "plain.npz", **arrays)
    np.savez_compressed(packed / "deflated.npz", **arrays)
    for kind in ("a", "b"):
        (pictures / kind).mkdir(parents=True)
        for suffix in ("png", "gif", "jpg", "bmp", "tiff", "webp", "ppm"):
            values = draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(values).save(pictures / kind / f"picture.{suffix}")
    return {
        "npz": Target(
            packed, lambda f: [_loaded(f"npz:{f / name}") for name in ("plain.npz", "deflated.npz")]
        ),
        "pictures": Target(pictures, lambda f: _loaded(f"folder:{f}", image_size=8), ("*/*",)),
        "records": Target(write_key(folder / "records"), _brought, covered=True),
    }


def _loaded(name: str, **fields: Any) -> object:
    found = load_dataset(DatasetSpec(name=name, **fields), child(0, "dataset"))
    return found.sha256(), found.classes


def _brought(folder: Path) -> object:
    """What a commitment covers; the lists of other rows are in the files too, and may change."""
    found = read_records(folder / "records.json", folder / "records.npz")
    if found.design is None or found.x is None:
        raise IntegrityError(["the coins or the images are gone"])
    clients = [(party, own.to_json()) for party, own in sorted(found.clients.items())]
    return clients, found.x.tolist(), found.y.tolist()


# -- what follows from a record -----------------------------------------------------------------------------------


def _of_conclusions(folder: Path, run: Path) -> dict[str, Target]:
    private, public = keypair(folder)
    bundle = fdaudit.evidence(load(run), folder / "bundle", sign=private)
    key = public_key(public)

    def checked(folder: Path) -> object:
        if findings := verify_bundle(folder, key=key).findings:
            raise IntegrityError(findings)
        return sorted((p.relative_to(folder), p.read_bytes()) for p in folder.rglob("*") if p.is_file())

    table = folder / "table"
    table.mkdir()
    shutil.copyfile(run / "utility.csv", table / "utility.csv")
    cells = folder / "cells"
    cells.mkdir()
    kept = {"head": "0" * 64, "numbers": [1, 2.5, None], "more": {"a": [True]}}
    (cells / "cell.json").write_text(json.dumps(kept))
    return {
        "evidence": Target(bundle, checked, covered=True),
        "table": Target(table, lambda f: utility_table(f).to_csv()),
        "json": Target(cells, lambda f: json.dumps(load_json(f / "cell.json"))),
    }


# -- records of other systems --------------------------------------------------------------------------------------


def _of_imports(folder: Path, run: Path) -> dict[str, Target]:
    """A record with its card, its truth and the settings of an audit; each target changes one of them."""
    foreign = folder / "foreign"
    foreign.mkdir()
    rerecord(load(run), foreign)
    (foreign / "truth" / "sites.json").write_text('{"client/0": "north", "client/1": 7}')
    card = card_of(load(run), protocol={"name": "acme"}, training={"lr": 0.1, "batch_size": 16})
    card |= {
        "messages": [{"kind": "logits", "sender": "client", "what": "answers"}],
        "defenses": [],
        "attested": [{"kind": "logits", "by": "somebody", "event": _MECHANISM}],
        "claims": [{"epsilon": 3.0, "source": "a page"}],
        "stand_in": {"name": "fedavg", "params": {}},
    }
    (foreign / "card.yaml").write_text(yaml.safe_dump(card))
    (foreign / "audit.yaml").write_text(yaml.safe_dump({"profile": "quick", "threads": 1, "victims": 1}))
    return {
        "foreign-card": Target(foreign, _imported, ("card.yaml", "audit.yaml")),
        "foreign-record": Target(foreign, _imported, ("record/**/*",), covered=False),
        "foreign-truth": Target(foreign, _imported, ("truth/*",)),
    }


_MECHANISM = {
    "event": "Gaussian",
    "unit": "record",
    "relation": "add-or-remove",
    "covers": ["data"],
    "count": 1,
    "sensitivity": 1.0,
    "scale": 2.0,
    "drawn_from": 1,
}


def _imported(folder: Path) -> object:
    """What an import makes of a record; it writes one directory, whole or not at all, and nothing else."""
    before = sorted(folder.rglob("*"))
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as seed:
        Vault(Path(seed) / "vault").create(Secrets(7, bytes(32)))
        out = Path(made) / "run"
        try:
            found = import_record(
                folder / "record",
                out,
                card=folder / "card.yaml",
                truth=[folder / "truth"],
                audit=folder / "audit.yaml",
                seed_from=seed,
            ).directory
        except BaseException:
            assert not list(Path(made).iterdir()), "something is left of an import that failed"
            raise
        finally:
            assert sorted(folder.rglob("*")) == before, "an import changed what it read"
        assert [p.name for p in Path(made).iterdir()] == ["run"]
        assert verify(found) == []
        return json.loads((found / "result.json").read_bytes())


def _cached(folder: Path) -> Target:
    """A cache with one result: what is found there is the result, or it is computed anew."""
    computed = {"x": torch.arange(4.0)}
    with pytest.MonkeyPatch.context() as patch:
        _only(patch, folder)
        cache.remembered("d", lambda: computed)

    def found(folder: Path) -> object:
        with pytest.MonkeyPatch.context() as patch:
            _only(patch, folder)
            return _plain(cache.remembered("d", lambda: computed))

    return Target(folder, found, ("d.*",), covered=True)


def _only(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv(cache.DIRECTORY, str(folder))
    patch.setenv(cache.KEY, "0" * 64)
    patch.delenv(cache.BYTES, raising=False)
