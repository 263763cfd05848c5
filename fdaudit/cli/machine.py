"""The commands about this machine: what it offers, and which weights of LPIPS and FID are here."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from fdaudit.cli.options import AsJson
from fdaudit.errors import UsageError
from fdaudit.progress import show

__all__ = ["doctor", "weights"]


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine offers: how it confines attacks (tried, not guessed), processors, memory, data, disk."""
    import torch

    from fdaudit.data.datasets import data_root
    from fdaudit.isolation.attacker import offered_confinement
    from fdaudit.metrics.images.weights import PINS, find_weights
    from fdaudit.parallel.memory import budget

    data = data_root()
    missing = list[str]()
    for weight, pin in PINS.items():
        if find_weights(weight) is None:
            missing.append(pin.file)
    memory = budget()
    machine: dict[str, Any] = {
        "confinement": offered_confinement().plain(),
        "cores": os.cpu_count() or 1,
        "memory_gb": None if memory is None else round(memory, 1),
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "data": str(data),
        "data_exists": data.is_dir(),
        "weights": os.environ.get("FDAUDIT_WEIGHTS"),
        "weights_missing": ", ".join(missing) or None,
        "disk_free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1),
        "torch": torch.__version__,
    }
    if as_json:
        show(json.dumps(machine))
        return
    confinement = machine.pop("confinement")
    show(f"confined by      {', '.join(confinement['held']) or 'nothing'}")
    for layer, reason in confinement["missing"].items():
        show(f"not confined by  {layer}: {reason}")
    for name, value in machine.items():
        words = "none" if value is None else str(value)
        if isinstance(value, float):
            words = f"{value:.1f}"
        show(f"{name.replace('_', ' '):<17}{words}")


def weights(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE...]", help="Files to check. Without one: what is here and what is missing."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the weight files of LPIPS and FID with source, SHA-256 and place, or check given files. Downloads nothing.

    Exit code 1 if a given file is not one of them, or a listed file has other bytes.
    """
    entries = list(map(_checked, files)) if files else _listed()
    if as_json:
        show(json.dumps(entries))
    elif files:
        for entry in entries:
            show(f"{entry['state']:<14}{entry['file']}: {entry['said']}")
    else:
        for entry in entries:
            show(f"{entry['metric']:<6}{entry['file']}: {entry['state']}")
            for label in ("path", "sha256", "source", "set"):
                if entry[label]:
                    show(f"      {label:<8}{entry[label]}")
            if entry["state"] == "missing":
                for place in entry["places"]:
                    show(f"      looked in {place}")
    if any(entry["state"] in ("wrong digest", "unknown") for entry in entries):
        raise typer.Exit(1)


def _listed() -> list[dict[str, Any]]:
    """Return every pinned file with its state: present, missing or wrong digest."""
    from fdaudit.metrics.images.weights import PINS, find_weights, places_of, same_weights

    entries = []
    for name, pin in PINS.items():
        path = find_weights(name)
        state = "missing"
        if path is not None:
            state = "present" if _read(path, same_weights) == name else "wrong digest"
        place = "FDAUDIT_WEIGHTS=DIRECTORY, or torch's cache"
        if pin.package:
            place = f"comes with the package {pin.package}"
        entry: dict[str, Any] = {
            "file": pin.file,
            "metric": pin.metric,
            "state": state,
            "sha256": pin.sha256,
            "source": pin.source,
        }
        places = list(map(str, places_of(name)))
        entries.append(entry | {"path": None if path is None else str(path), "places": places, "set": place})
    return entries


def _checked(path: Path) -> dict[str, Any]:
    """Return whether a file is a pinned one, has only the name of one, or neither."""
    from fdaudit.metrics.images.weights import PINS, same_weights

    name = _read(path, same_weights)
    if name is not None:
        pin = PINS[name]
        call = "" if path.name == pin.file else f"; rename it to {pin.file}"
        return {"file": str(path), "state": "right", "said": f"{pin.metric}, {pin.file}{call}"}
    for pin in PINS.values():
        if pin.file == path.name:
            problem = f"the bytes are not those of SHA-256 {pin.sha256}; get it from {pin.source}"
            return {"file": str(path), "state": "wrong digest", "said": problem}
    return {"file": str(path), "state": "unknown", "said": "no metric of fdaudit uses this file"}


def _read(path: Path, digest: Any) -> str | None:
    try:
        return digest(path)  # type: ignore[no-any-return]
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UsageError("file", str(path), problem, "Give a file that exists and is readable.") from None
