"""What a checkpoint names is on the disk before it is; rounds that wait together become durable together."""

from __future__ import annotations

import json
import os
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fdaudit
from fdaudit.audit import simulation
from fdaudit.federation.checkpoints import Checkpoints
from fdaudit.federation.protocol import Round
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.transcript import Transcript, read_messages

from ..helpers.run_cases import Waiting
from ..helpers.transcript_cases import message


@pytest.mark.parametrize(("waiting", "checkpoints"), [(False, [0, 1]), (True, [0, 3])])
def test_a_checkpoint_takes_its_place_once_all_that_it_names_is_durable(
    waiting: bool, checkpoints: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four rounds of which three wait while the first is made durable, the last stands for all."""
    if waiting:
        monkeypatch.setattr(simulation, "BackgroundWriter", Waiting)
    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are read from /proc")
    synced, rounds, sync, replace = set[Path](), list[int](), os.fsync, os.replace

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def replacing(source: Path, target: Path) -> None:
        if Path(target).name == "round.json":
            stated = json.loads(Path(source).read_bytes())
            rounds.append(stated["round"])
            vault, transcript = Path(target).parent, Path(target).parent.parent / "transcript"
            assert len(list((vault / "truth").iterdir())) == stated["round"] + 1
            assert {
                Path(source),
                vault / f"{stated['state']}.safetensors",
                vault / "state",
                *(vault / "truth").iterdir(),
                vault / "truth",
                *(transcript / "payloads").iterdir(),
                transcript / "payloads",
                transcript / "messages.jsonl",
                transcript,
            } <= synced
            # These change with the next round.
            synced.difference_update(
                [path for path in list(synced) if path.is_dir() or path.suffix == ".jsonl"]
            )
            synced.discard(Path(source))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "replace", replacing)
    told = list[int]()
    params = {"rounds": checkpoints[-1] + 1, "batch_size": 16, "local_steps": 1}
    fdaudit.run(
        small_spec(protocol__params=params, references=[], attacks=[]),
        tmp_path.resolve() / "out",
        tick=lambda what, done, total: told.append(done) if what == "fedavg" else None,
    )
    assert rounds == checkpoints
    assert told == list(range(params["rounds"] + 1))


@pytest.mark.thorough
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_a_round_is_told_of_once_and_in_order_and_no_earlier_than_it_is_durable(let: list[int]) -> None:
    """However far the writer comes between two rounds, each of one message."""
    with tempfile.TemporaryDirectory() as name:
        vault, writer, told = Vault(Path(name, "vault")), Waiting(), list[int]()
        vault.create(Secrets.draw(7))
        saved, waited = list[int](), list[int]()

        def tell(number: int) -> None:
            durable = vault.load_round()
            assert durable is not None
            assert durable["round"] >= number
            assert durable["transcript"]["seq"] == durable["round"] + 1
            assert vault.load(durable["state"], durable["state_sha256"])["n"].item() == durable["round"]
            assert vault.names("state") == [durable["state"]]
            told.append(number)
            waited.append(len(saved))

        with Transcript(Path(name), secret=b"s" * 32, writer=writer) as transcript:
            checkpoints = Checkpoints(vault, transcript)
            for number, steps in enumerate(let):
                transcript.append(message("x", round=number), {"n": torch.tensor(number)})
                done = Round(index=number, models={}, batches={number: torch.tensor([number])})
                checkpoints.save(done, {"n": torch.tensor(number)}, 0, partial(tell, number))
                saved.append(number)
                writer.let(steps)
                written = len(vault.names("truth"))
                assert len(told) == written or written < waited[-1], (
                    "only what had waited waits for the others"
                )
        assert told == list(range(len(let)))
        assert len(vault.names("truth")) == len(let)
        assert len(list(read_messages(Path(name)))) == len(let)
