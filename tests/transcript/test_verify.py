"""Acceptance: whatever is changed in a finished run's record, `verify` finds it and names the file."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fdaudit.api import attack, load, run
from fdaudit.errors import IntegrityError, RunError
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import read_manifest, verify, write_manifest
from fdaudit.transcript.transcript import verify_transcript

from ..helpers.command import Cli
from ..helpers.run_cases import finished

LOG = "transcript/messages.jsonl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("verify") / "run", model__params={"widths": [1]})


@pytest.fixture
def damaged(original: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def names(findings: list[str], *files: str) -> bool:
    """Whether some finding names one of the files, by its path below the run or below the transcript."""
    return any(file.removeprefix("transcript/") in finding for finding in findings for file in files)


# -- every byte -----------------------------------------------------------------------------------------------


def flips(path: Path, masks: Callable[[int], list[int]]) -> Iterator[tuple[int, int]]:
    """Flips each byte of a file in place, one at a time, and puts it back."""
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(whole):
            for mask in masks(at):
                file.seek(at)
                file.write(bytes([byte ^ mask]))
                yield at, mask
            file.seek(at)
            file.write(bytes([byte]))
    assert path.read_bytes() == whole


def test_a_copy_without_the_vault_is_intact(original: Path, tmp_path: Path) -> None:
    """The page on the transcript tells readers to copy a run so."""
    copy = shutil.copytree(original, tmp_path / "copy", ignore=shutil.ignore_patterns("vault"))
    assert not (copy / "vault").exists()
    assert verify(copy) == []


def test_a_list_of_defects_has_an_end(damaged: Path) -> None:
    """Each line of a log may hold a defect, and a log a million lines."""
    log = damaged / LOG
    log.write_bytes(b"{}\n" * 5_000)
    findings = verify(damaged)
    assert len(findings) < 1_010
    assert any("line 1000 is" in finding for finding in findings)


@pytest.mark.thorough
def test_every_single_byte_of_the_record_is_covered(damaged: Path) -> None:
    """All bytes under `transcript/` and of the manifest, each with its lowest bit flipped, some with others."""
    assert verify(damaged) == []
    manifest = read_manifest(damaged)
    files = sorted(p for p in (damaged / "transcript").rglob("*") if p.is_file())
    assert len(files) == 1 + 2, "the log, and a file for each of two rounds"
    chosen, checked = random.Random(0), 0
    for path in [*files, damaged / "manifest.json"]:
        name = path.relative_to(damaged).as_posix()
        for at, mask in flips(path, lambda at: [1, chosen.randrange(2, 256)] if at % 17 == 0 else [1]):
            if path.name == "manifest.json":
                findings = verify(damaged)
            else:  # the manifest is whole: read once, not 20,000 times
                findings = verify_transcript(
                    damaged / "transcript", head=manifest["head"], count=manifest["messages"]
                )
            assert names(findings, name), f"byte {at} of {name} ^ {mask:#x}: {findings}"
            checked += 1
    assert checked > sum(p.stat().st_size for p in files)
    assert verify(damaged) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["spec.yaml", "utility.csv"])
def test_every_single_byte_of_the_covered_files_is_covered(name: str, damaged: Path) -> None:
    for at, mask in flips(damaged / name, lambda at: [1]):
        assert names(verify(damaged), name), f"byte {at} ^ {mask:#x}"


@pytest.mark.parametrize("end", ["cut", "newline lost", "newline doubled", "carriage return", "blank added"])
def test_the_end_of_the_log_is_covered(end: str, damaged: Path) -> None:
    log = damaged / LOG
    data = log.read_bytes()
    log.write_bytes(
        {
            "cut": data[:-40],
            "newline lost": data[:-1],
            "newline doubled": data + b"\n",
            "carriage return": data[:-1] + b"\r\n",
            "blank added": data + b" ",
        }[end]
    )
    assert names(verify(damaged), LOG)


# -- lines ----------------------------------------------------------------------------------------------------


def lines(run: Path) -> list[bytes]:
    return (run / LOG).read_bytes().split(b"\n")[:-1]


def rewrite(run: Path, changed: list[bytes]) -> None:
    (run / LOG).write_bytes(b"".join(line + b"\n" for line in changed))


def test_dropping_any_line_is_found(damaged: Path) -> None:
    whole = lines(damaged)
    for k in range(len(whole)):
        rewrite(damaged, whole[:k] + whole[k + 1 :])
        assert names(verify(damaged), LOG), k


def test_doubling_any_line_is_found(damaged: Path) -> None:
    whole = lines(damaged)
    for k in range(len(whole)):
        for at in range(len(whole) + 1):
            rewrite(damaged, [*whole[:at], whole[k], *whole[at:]])
            assert names(verify(damaged), LOG), (k, at)


def test_swapping_any_two_lines_is_found(damaged: Path) -> None:
    whole = lines(damaged)
    for k in range(len(whole)):
        for j in range(k):
            swapped = list(whole)
            swapped[k], swapped[j] = swapped[j], swapped[k]
            rewrite(damaged, swapped)
            assert names(verify(damaged), LOG), (k, j)


def test_a_line_of_another_run_is_found(damaged: Path, tmp_path: Path) -> None:
    whole = lines(damaged)
    foreign = lines(finished(tmp_path / "other", model__params={"widths": [1]}, seed=8))
    for k in range(len(whole)):
        rewrite(damaged, [*whole[:k], foreign[k], *whole[k + 1 :]])
        assert names(verify(damaged), LOG), k


def test_a_line_added_with_a_right_chain_is_found(damaged: Path) -> None:
    """Appending needs no secret; only the head in the manifest shows it."""
    import hashlib

    from fdaudit.storage.digests import canonical

    whole = lines(damaged)
    value = json.loads(whole[-1])
    value |= {"seq": len(whole), "previous": hashlib.sha256(whole[-1]).hexdigest(), "payload": None}
    rewrite(damaged, [*whole, canonical(value)])
    assert names(verify(damaged), LOG)


def test_an_edit_whose_whole_chain_was_made_anew_is_found(damaged: Path) -> None:
    """Whoever edits an early line and chains all later ones again still misses the head."""
    import hashlib

    from fdaudit.storage.digests import canonical

    changed, previous = [], "0" * 64
    for line in lines(damaged):
        value = {**json.loads(line), "previous": previous, "bytes_on_wire": 1}
        changed.append(canonical(value))
        previous = hashlib.sha256(changed[-1]).hexdigest()
    rewrite(damaged, changed)
    (finding,) = verify(damaged)
    assert "the head" in finding


def test_an_edit_of_the_manifest_with_a_right_digest_of_its_own_is_found(damaged: Path) -> None:
    stated = read_manifest(damaged)
    for change in ({"head": "0" * 64}, {"messages": stated["messages"] - 1}, {"files": {}}):
        values = {k: v for k, v in {**stated, **change}.items() if k not in ("schema", "status")}
        if "files" not in change:
            values.pop("files")
        write_manifest(damaged, values)
        assert verify(damaged), change
    for change in ({"head": None}, {"messages": "9"}, {"commitments": []}):
        write_manifest(damaged, {**{k: v for k, v in stated.items() if k != "files"}, **change})
        assert names(verify(damaged), "manifest.json"), change


# -- files ----------------------------------------------------------------------------------------------------


def payloads(run: Path) -> list[Path]:
    return sorted((run / "transcript" / "payloads").iterdir())


def test_a_missing_cut_grown_or_swapped_payload_is_found(damaged: Path) -> None:
    for number, path in enumerate(payloads(damaged)):
        whole = path.read_bytes()
        other = payloads(damaged)[number - 1].read_bytes()
        for changed in (None, b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0", other):
            if changed is None:
                path.unlink()
            else:
                path.write_bytes(changed)
            salted_alike = changed is not None and changed == whole
            assert salted_alike or names(verify(damaged), path.name), (path.name, changed and len(changed))
        path.write_bytes(whole)
    assert verify(damaged) == []


STRAYS = (
    "stray",
    ".hidden",
    "messages.jsonl.bak",
    ".messages.jsonl.tmp",
    "payloads/stray",
    "payloads/00000099.safetensors",
    "payloads/.00000000.safetensors.tmp",
    "payloads/00000000.SAFETENSORS",
    "a name with\nnewline",
    "payloads/\udcff",
)


@pytest.mark.parametrize("name", STRAYS)
@pytest.mark.parametrize("kind", ["file", "folder", "link", "dead link", "pipe"])
def test_anything_that_no_line_names_is_found(name: str, kind: str, damaged: Path) -> None:
    path = damaged / "transcript" / name
    if kind == "file":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(damaged / "spec.yaml")
    elif kind == "dead link":
        path.symlink_to("nowhere")
    else:
        os.mkfifo(path)
    assert names(verify(damaged), name)


@pytest.mark.parametrize(
    "name", [LOG, "transcript/payloads/round-000001.shard", "transcript/payloads", "spec.yaml"]
)
def test_a_link_in_the_place_of_the_real_thing_is_found(name: str, damaged: Path) -> None:
    """The same bytes by way of a link: they could change after the check."""
    path, elsewhere = damaged / name, damaged / "attacks" / "elsewhere"
    elsewhere.parent.mkdir(exist_ok=True)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert names(verify(damaged), name)


def test_a_transcript_that_is_a_link_is_found(damaged: Path) -> None:
    (damaged / "transcript").rename(damaged / "elsewhere")
    (damaged / "transcript").symlink_to(damaged / "elsewhere")
    (finding,) = verify(damaged)
    assert finding.startswith("transcript is a")


@pytest.mark.parametrize("name", [LOG, "spec.yaml", "utility.csv", "manifest.json"])
def test_a_missing_file_is_found(name: str, damaged: Path) -> None:
    (damaged / name).unlink()
    assert names(verify(damaged), name)


def test_a_missing_transcript_is_found(damaged: Path) -> None:
    shutil.rmtree(damaged / "transcript")
    assert names(verify(damaged), LOG)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"self":1}',
        b'{"head":1e999,"self":""}',
        b"{}\n{}",
    ],
)
def test_a_manifest_that_is_none_is_found(data: bytes, damaged: Path) -> None:
    (damaged / "manifest.json").write_bytes(data)
    assert names(verify(damaged), "manifest.json")


# -- what stays outside ---------------------------------------------------------------------------------------


def test_an_intact_run_has_no_findings_wherever_it_lies(original: Path, tmp_path: Path) -> None:
    assert verify(original) == []
    moved = shutil.copytree(original, tmp_path / "a moved run")
    assert verify(moved) == []


def test_an_unfinished_run_and_no_run_are_told_from_damage(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="of 1 runs"):
        verify(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(RunError, match="no manifest"):
        verify(tmp_path / "none")
    (damaged / "manifest.json").unlink()
    (damaged / "result.json").unlink()
    with pytest.raises(RunError, match="--resume"):
        verify(damaged)


@pytest.mark.thorough
@pytest.mark.parametrize("record", ["digest", {"rounds": [1]}])
def test_a_run_that_kept_digests_is_intact_and_covered(record: object, tmp_path: Path) -> None:
    directory = finished(tmp_path / "run", record=record)
    assert verify(directory) == []
    whole = lines(directory)
    assert sum(json.loads(line)["payload"] is None for line in whole) == (9 if record == "digest" else 5)
    for at, _ in flips(directory / LOG, lambda at: [1] if at % 7 == 0 else []):
        assert names(verify(directory), LOG), at
    # A payload put beside a line that kept only its digest is a file that no line names.
    (directory / "transcript" / "payloads" / "00000000.safetensors").write_bytes(b"x")
    assert names(verify(directory), "payloads/00000000.safetensors")


# -- through the commands -------------------------------------------------------------------------------------


def test_the_command_says_what_is_wrong_and_ends_with_3(damaged: Path, cli: Cli) -> None:
    code, out, err = cli("verify", damaged)
    assert (code, err) == (0, "")
    assert out.startswith("intact")

    path = payloads(damaged)[1]
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    (damaged / "transcript" / "payloads" / "\x1b[31mred\n").write_bytes(b"")
    code, out, err = cli("verify", damaged)
    assert (code, out) == (3, "")
    assert path.name in err
    assert "\\x1b[31mred\\n" in err
    assert "\x1b" not in err
    assert all(line.startswith("fdaudit: ") for line in err.splitlines())
    assert len(err.splitlines()) == len(verify(damaged)) == 2

    code, out, err = cli("verify", damaged, "--json")
    assert (code, err) == (3, "")
    assert json.loads(out) == {"run": str(damaged), "intact": False, "findings": verify(damaged)}


@pytest.mark.parametrize(
    "name", ["manifest.json", LOG, "spec.yaml", "transcript/payloads/round-000000.shard"]
)
def test_the_command_names_what_is_missing_and_ends_with_3(name: str, damaged: Path, cli: Cli) -> None:
    (damaged / name).unlink()
    code, out, err = cli("verify", damaged)
    assert (code, out) == (3, "")
    assert name.removeprefix("transcript/") in err


def test_a_changed_record_is_not_attacked_and_not_resumed(damaged: Path) -> None:
    """Figures taken from it would stand in the result under a head that is not theirs."""
    line = lines(damaged)[4]
    assert b'"sender":"client/' in line
    rewrite(damaged, [*lines(damaged)[:4], line.replace(b"client/", b"clienT/"), *lines(damaged)[5:]])
    before = (damaged / "result.json").read_bytes()
    with pytest.raises(IntegrityError, match=r"messages\.jsonl"):
        attack("loss-threshold", load(damaged))
    with pytest.raises(IntegrityError, match=r"messages\.jsonl"):
        run(small_spec(model__params={"widths": [1]}), damaged, resume=True)
    assert (damaged / "result.json").read_bytes() == before
