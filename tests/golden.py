"""Write the figures of small fixed runs as text, so that two checkouts can be compared on one machine.

`python -m tests.golden OUT [CASE …]` here and there, then `diff -r OUT THERE`. The cases are the five specs of the
quickstart, a sweep, an import, masks and texts, all with fixed secrets. A change that only moves or renames code leaves
every file as it was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import fdaudit
from fdaudit import api
from fdaudit.planning import recorded, simulated
from fdaudit.quickstart.suite import specs
from fdaudit.storage.vault import Secrets
from fdaudit.testing.specs import small_spec
from tests.helpers.mask_cases import write_masks
from tests.helpers.rerecorded import audit_of, card_of, rerecord, with_coins
from tests.helpers.run_cases import known
from tests.helpers.text_cases import write_texts

_UNSTABLE = ("versions", "reproduce", "timings")
"""Members of a result that differ between machines or checkouts."""


def main(out: Path, names: list[str]) -> None:
    """Run the named cases, or all, below a temporary directory and write their figures to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for module in (simulated, recorded):  # salts and noise of defences depend on the code
        module.own_digest = lambda: "fixed"  # type: ignore[attr-defined]
    drawn = Secrets.draw
    Secrets.draw = lambda seed=None: drawn() if seed is None else known(seed)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, spec in specs_of(folder).items():
            if name in (names or (name,)):
                _write(out, name, fdaudit.run(spec, folder / name))
        if "import" in (names or ("import",)):
            _write(
                out, "import", imported(fdaudit.run(specs_of(folder)["fedkd"], folder / "original"), folder)
            )
        if "sweep" in (names or ("sweep",)):
            swept(Path(__file__).parents[1] / "examples" / "sweep-tiny.yaml", folder / "sweep", out)


def specs_of(folder: Path) -> dict[str, Any]:
    """Return the spec of each case: quickstart's five with fewer records and rounds, one of masks, one of texts."""
    found = dict[str, Any]()
    for name, spec in specs().items():
        value = spec.model_dump(mode="json", exclude_unset=True)
        long = value["protocol"]["params"].keys() & {"rounds", "local_epochs"}
        value["protocol"]["params"] |= dict.fromkeys(long, 2)
        found[name] = value | {
            "seed": 7,
            "clients": 3,
            "victims": 1,
            "threads": 1,
            "device": "cpu",
            "references": [],
        }
        found[name] |= {"dataset": {"name": "digits", "limit": 300}, "evaluate_every": 1, "power": False}
        found[name]["splits"] = value["splits"] | {"candidates": 10}
    trained = {"rounds": 2, "batch_size": 8, "local_steps": 3}
    shared = {
        "attacks": "all",
        "adversaries": ["server", "world"],
        "protocol": {"name": "fedavg", "params": trained},
    }
    masks = {"name": f"masks:{write_masks(folder / 'discs.npz', 120)}"}
    texts = {"name": f"text:{write_texts(folder / 'texts.csv', 160)}", "length": 12}
    unet = {"name": "unet", "params": {"width": 8, "depth": 1}}
    small = {"name": "transformer", "params": {"width": 16, "heads": 2, "depth": 1}}
    found["masks"] = small_spec(dataset=masks, model=unet, partition={"name": "by-site"}, **shared)
    found["masks"]["splits"] = {"test": 0.2, "proxy": 0.1, "auxiliary": 0.2, "candidates": 8}
    found["texts"] = small_spec(dataset=texts, model=small, **shared)
    return found


def imported(run: fdaudit.Run, folder: Path) -> fdaudit.Run:
    """Return a run that was recorded again and imported."""
    rerecord(run, folder)
    with_coins(folder / "truth")
    again = fdaudit.import_record(
        folder / "record",
        folder / "imported",
        card=card_of(run),
        truth=[folder / "truth"],
        audit={**audit_of(run), "attacks": "all"},
        seed_from=run.directory,
    )
    api.attack_all(again)
    return again


def swept(example: Path, place: Path, out: Path) -> None:
    """Carry out a sweep and write the results of its runs."""
    from fdaudit.sweeps.sweep import sweep

    index = sweep(example, place)
    for entry in index.runs:
        path = place / "runs" / entry.key / "result.json"
        value = (
            json.loads(path.read_bytes())
            if path.is_file()
            else {"status": entry.status, "reason": entry.reason}
        )
        _dump(out / f"sweep-{entry.key}.json", value)


def _write(out: Path, name: str, run: fdaudit.Run) -> None:
    """Write a run's result, and the digest of its pages."""
    value = json.loads((run.directory / "result.json").read_bytes())
    pages = {False: api.report(run), True: api.report(run, run.directory / "public.html", public=True)}
    value["pages"] = [hashlib.sha256(page.read_bytes()).hexdigest() for page in pages.values()]
    _dump(out / f"{name}.json", value)
    for public, page in pages.items():
        shutil.copy(page, out / f"{name}{'-public' * public}.html")


def _dump(path: Path, value: dict[str, Any]) -> None:
    kept = {key: part for key, part in value.items() if key not in _UNSTABLE}
    for name in _UNSTABLE:
        kept.get("run", {}).pop(name, None)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
