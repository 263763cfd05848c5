"""An auditor and a site that share a record and never the truth; and an asker who sends the site guesses of its own."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.torch import save_file
from torch import Tensor

import fdaudit
from fdaudit import api
from fdaudit.audit.run import Run
from fdaudit.importing.site_score import score_at_site
from fdaudit.importing.written_guesses import write_guesses
from fdaudit.scoring.ground_truth import Truth
from fdaudit.storage.digests import canonical
from fdaudit.testing.specs import small_spec

from ..helpers.rerecorded import card_of, rerecord

UPDATES = {"rounds": 3, "batch_size": 8, "local_steps": 1, "upload": "model_update", "weighting": "uniform"}
QUICK = {"iterations": 20, "restarts": 1}


@dataclass(frozen=True)
class Two:
    """The auditor's directory, and the site's.

    Attributes:
        auditor: what the auditor has.
        site: what the site has.
        source: the run that was recorded, with the whole truth.
        run: the auditor's import.
        guesses: what the auditor sent to the site.
    """

    auditor: Path
    site: Path
    source: Run
    run: Run
    guesses: Path

    @property
    def truth(self) -> Path:
        return self.site / "truth"

    @cached_property
    def opened(self) -> Truth:
        return Truth(self.source.case, self.source.opened.vault)

    def uploads(self, client: str) -> list[int]:
        """Return the messages of a client's own."""
        messages = self.source.view("server").messages
        return [m.seq for m in messages if (m.sender, m.kind) == (client, "model_update")]


def two(base: Path, **changes: Any) -> Two:
    """Run a federation and record it for an auditor and a site."""
    source = api.run(small_spec(protocol={"name": "fedavg", "params": UPDATES}, **changes), base / "run")
    auditor, site = base / "auditor", base / "site"
    site.mkdir()
    rerecord(source, site)
    (site / "card.yaml").write_text(yaml.safe_dump(card_of(source)))
    auditor.mkdir()
    shutil.copytree(site / "record", auditor / "record")
    shutil.copy(site / "card.yaml", auditor / "card.yaml")
    _bring_auxiliary(site / "truth", auditor / "knowledge")
    run = fdaudit.import_record(
        auditor / "record",
        auditor / "imported",
        card=auditor / "card.yaml",
        truth=[auditor / "knowledge"],
        audit={"profile": "quick", "threads": 1, "victims": 2},
    )
    guesses = write_guesses(run, "inverting-gradients", "server", auditor / "guesses", **QUICK)
    return Two(auditor, site, source, run, guesses)


def _bring_auxiliary(truth: Path, knowledge: Path) -> None:
    """Bring only what an adversary may know: auxiliary records, no client's."""
    knowledge.mkdir()
    value = json.loads((truth / "records.json").read_bytes())
    held, rows = np.load(truth / "records.npz"), np.array(value["auxiliary"])
    np.savez(knowledge / "records.npz", x=held["x"][rows], y=held["y"][rows])
    lists = {"schema": value["schema"], "clients": {}, "design": None, "auxiliary": list(range(len(rows)))}
    (knowledge / "records.json").write_bytes(canonical(lists) + b"\n")


@dataclass
class Asker:
    """Someone who sends a site guesses of its own and reads the statements.

    Attributes:
        made: the federation.
        folder: where it writes.
        truth: the truth that the site scores with.
        asked: how often it asked.
    """

    made: Two
    folder: Path
    truth: Sequence[Path]
    asked: int = 0

    def sends(self, **fields: Any) -> Path:
        """Write guesses beside the lines of the record."""
        self.asked += 1
        place = self.folder / f"asked-{self.asked}"
        place.mkdir(parents=True)
        shutil.copytree(self.made.guesses.parent / "record", place / "record")
        kept = json.loads(self.made.guesses.read_bytes())
        kept.pop("reconstruction")
        for number, guess in enumerate(fields.get("reconstruction", ())):
            if isinstance(guess["images"], Tensor):
                save_file({"images": guess["images"].float().contiguous()}, place / f"{number}.safetensors")
                guess["images"] = f"{number}.safetensors"
        (place / "guesses.json").write_text(json.dumps({**kept, **fields}))
        return place / "guesses.json"

    def asks(self, **fields: Any) -> Mapping[str, Any]:
        """Return the predicate that the site answers with."""
        path = self.sends(**fields)
        score_at_site(path, path.parent / "scored.json", truth=self.truth)
        return predicate(path.parent / "scored.json")

    def about_images(
        self, images: Tensor, messages: Sequence[int], target: str = "client/0", **fields: Any
    ) -> float:
        """Return the gain that the site answers for images."""
        one = {"target": target, "messages": list(messages), "images": images}
        said = self.asks(reconstruction=[one], **fields)
        return float(said["figures"][0]["value"])

    def about_shares(
        self, shares: Sequence[float], target: str = "client/0", **fields: Any
    ) -> tuple[float, float]:
        """Return the distance that the site answers for class shares, and the prior's."""
        one = {"target": target, "distribution": list(shares)}
        own = self.asks(label_distribution=[one], **fields)["targets"][0]["figures"]
        return float(own[0]["value"]), float(own[1]["value"])


def predicate(statement: Path) -> Any:
    """Return the predicate of a statement's file."""
    return json.loads(base64.b64decode(json.loads(statement.read_bytes())["payload"]))["predicate"]
