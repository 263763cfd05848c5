"""The truth of an import: notes that join, files of sites that become the records an auditor brings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import fdaudit
from fdaudit.audit.run import Run
from fdaudit.errors import DataError, UsageError
from fdaudit.importing.records import check
from fdaudit.recording.recorder import Recorder, RecordError, write_records

CLIENTS = ("client/0", "client/1")
CARD: dict[str, Any] = {
    "name": "two sites",
    "asserted_by": "the tests",
    "classes": 3,
    "input_shape": [2, 4, 5],
    "preprocess": {"mean": [0.5, 0.25], "std": [0.5, 2.0]},
    "protocol": {"name": "own"},
    "training": {"lr": 0.1, "batch_size": 6, "local_steps": 1},
}


def images(site: int, count: int = 6) -> torch.Tensor:
    """Images (count, 2, 4, 5) in [0, 1]."""
    return torch.rand(count, 2, 4, 5, generator=torch.Generator().manual_seed(site))


def fed(x: torch.Tensor) -> torch.Tensor:
    """Images as the network gets them."""
    mean, std = torch.tensor([0.5, 0.25]), torch.tensor([0.5, 2.0])
    return (x - mean[:, None, None]) / std[:, None, None]


def labels(count: int = 6) -> torch.Tensor:
    return torch.arange(count) % 3


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A record of one round, whose sites wrote down what their networks got; it leaves out no step."""
    weight = torch.zeros(3, 40)
    record = Recorder(tmp_path / "record", ["server", *CLIENTS], truth=tmp_path / "truth")
    record.round(0)
    sent = record.send("server", CLIENTS, "model_parameters", {"weight": weight})
    for site, party in enumerate(CLIENTS):
        x, y = fed(images(site)), labels()
        record.hold(party, x, y)
        probabilities = F.softmax(x.flatten(1) @ weight.T, dim=1)
        gradient = (probabilities - F.one_hot(y, 3)).T @ x.flatten(1) / len(y)
        record.send(
            party, "server", "model_update", {"weight": -0.1 * gradient}, ["data", sent.seq], range(6)
        )
    record.close()
    return tmp_path


def imported(folder: Path, *more: Path, **changes: Any) -> Run:
    truth = [folder / "truth", *more]
    return fdaudit.import_record(folder / "record", folder / "run", card={**CARD, **changes}, truth=truth)


def test_what_networks_got_becomes_images_of_each_client(recorded: Path) -> None:
    case = imported(recorded).case
    for site, split in enumerate(case.splits.clients):
        torch.testing.assert_close(case.dataset.x[split.train], images(site), rtol=0, atol=1e-6)
        assert case.dataset.y[split.train].tolist() == labels().tolist()
        assert not len(split.members)


def test_a_run_reads_them_again(recorded: Path) -> None:
    first = imported(recorded)
    assert Run(first.directory).case.identity == first.case.identity
    assert not [note for note in check_notes(recorded) if "left out" in note]


@pytest.mark.parametrize("kind", ["model_update", "model_parameters"])
@pytest.mark.parametrize("whole", [True, False])
def test_weights_and_differences_under_each_others_kind_are_noted(
    tmp_path: Path, kind: str, whole: bool
) -> None:
    weight = torch.ones(3, 40)
    with Recorder(tmp_path / "record", ["server", *CLIENTS], truth=tmp_path / "truth") as record:
        record.round(0)
        record.send("server", CLIENTS, "model_parameters", {"weight": weight})
        for site, party in enumerate(CLIENTS):
            record.hold(party, fed(images(site)), labels())
            moved = 0.1 * torch.sin(torch.arange(120.0)).reshape(3, 40)
            record.send(party, "server", kind, {"weight": weight + moved if whole else moved})
    noted = [note for note in check_notes(tmp_path) if "looks like" in note]
    mistaken = whole != (kind == "model_parameters")
    assert len(noted) == mistaken
    assert all(("whole weights" in note) == whole for note in noted)


def check_notes(folder: Path) -> list[str]:
    findings, notes = check(folder / "record", card=CARD, truth=[folder / "truth"])
    assert not findings
    return notes


def test_sites_are_found_by_the_names_that_the_truth_gives(recorded: Path) -> None:
    truth = recorded / "truth"
    (truth / "client-0.npz").rename(truth / "client-north.npz")
    (truth / "client-1.npz").rename(truth / "client-0.npz")
    (truth / "sites.json").write_text(json.dumps({"client/0": "north", "client/1": "client/0"}))
    case = imported(recorded).case
    torch.testing.assert_close(case.dataset.x[case.splits.clients[0].train], images(0), rtol=0, atol=1e-6)
    torch.testing.assert_close(case.dataset.x[case.splits.clients[1].train], images(1), rtol=0, atol=1e-6)


def test_held_out_records_are_candidates_beside_as_many_members(recorded: Path) -> None:
    write_records(recorded / "truth", "1", fed(images(1, 9)), labels(9), held_out=[6, 7, 8])
    case = imported(recorded).case
    first, second = case.splits.clients
    assert not len(first.non_members)
    assert (len(second.train), len(second.members), len(second.non_members)) == (6, 3, 3)
    assert set(second.members.tolist()) <= set(second.train.tolist())
    torch.testing.assert_close(case.dataset.x[second.non_members], images(1, 9)[6:], rtol=0, atol=1e-6)
    assert case.design == "observational"


def test_a_site_with_records_that_are_not_finite_is_named(recorded: Path) -> None:
    x = fed(images(1))
    x[2, 0, 0, 0] = float("nan")
    write_records(recorded / "truth", "1", x, labels())
    with pytest.raises(DataError, match=r"client-1\.npz: 'x' .*NaN"):
        imported(recorded)


def test_records_that_no_site_holds_are_shared(recorded: Path) -> None:
    with Recorder(recorded / "other", ["server"], truth=recorded / "shared") as record:
        for name, seed in (("auxiliary", 5), ("public", 6), ("test", 7)):
            record.hold(name, fed(images(seed)), labels())
        with pytest.raises(RecordError, match=r"^held_out: 'test' "):
            record.hold("test", fed(images(7)), labels(), held_out=[0])
    for path in (recorded / "shared").glob("*.npz"):
        path.rename(recorded / "truth" / path.name)
    case = imported(recorded).case
    splits = case.splits
    for rows, seed in ((splits.auxiliary, 5), (splits.proxy, 6), (splits.test, 7)):
        torch.testing.assert_close(case.dataset.x[rows], images(seed), rtol=0, atol=1e-6)


def test_a_site_that_took_no_part_is_left_out_and_named(recorded: Path) -> None:
    write_records(recorded / "truth", "7", fed(images(7)), labels())
    assert any("client-7.npz" in note for note in check_notes(recorded))
    assert imported(recorded).case.dataset.x.shape[0] == 12


def test_images_as_bytes_are_no_inputs_of_a_network(recorded: Path) -> None:
    pixels = (images(0) * 255).round().to(torch.uint8)
    write_records(recorded / "truth", "0", pixels, labels())
    write_records(recorded / "truth", "1", pixels, labels())
    case = imported(recorded).case
    torch.testing.assert_close(case.dataset.x[:6], pixels / 255, rtol=0, atol=1e-6)


def test_rows_of_a_table_stay_as_the_network_gets_them(recorded: Path) -> None:
    rows = fed(images(0)).flatten(1)
    for site in ("0", "1"):
        write_records(recorded / "truth", site, rows, labels())
    case = imported(recorded, task="table", input_shape=[40], preprocess=None).case
    torch.testing.assert_close(case.dataset.x[:6], rows, rtol=0, atol=1e-6)


# -- refusals -----------------------------------------------------------------------------------------------------


def two_lists(truth: Path) -> None:
    (truth / "records.json").write_text("{}")
    np.savez(truth / "records.npz", x=np.zeros((1, 4, 5)), y=np.zeros(1, int))


def notes_alone(truth: Path) -> None:
    (truth / "notes.jsonl").write_text('{"records":[0],"reply":"a","site":"0"}\n')


def both_uses(truth: Path) -> None:
    (truth / "replies.jsonl").write_text("")


def no_rows(truth: Path) -> None:
    np.savez(truth / "client-0.npz", x=np.zeros((0, 2, 4, 5)), y=np.zeros(0, int))


def other_shape(truth: Path) -> None:
    write_records(truth, "0", np.zeros((2, 1, 8)), [0, 1])


def channels_last(truth: Path) -> None:
    write_records(truth, "0", fed(images(0)).permute(0, 2, 3, 1), labels())


def held_out_elsewhere(truth: Path) -> None:
    with np.load(truth / "client-0.npz") as held:
        np.savez(truth / "client-0.npz", x=held["x"], y=held["y"], held_out=np.array([6]))


def no_client(truth: Path) -> None:
    (truth / "client-0.npz").rename(truth / "client-8.npz")
    (truth / "client-1.npz").rename(truth / "client-9.npz")


def a_link(truth: Path) -> None:
    (truth / "client-0.npz").rename(truth.parent / "elsewhere.npz")
    (truth / "client-0.npz").symlink_to(truth.parent / "elsewhere.npz")


def pickled(truth: Path) -> None:
    x = np.empty(6, dtype=object)
    np.savez(truth / "client-0.npz", x=x, y=np.zeros(6, int))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (two_lists, "client-0.npz has records as well"),
        (notes_alone, "no directory has the server's replies.jsonl"),
        (both_uses, "has uses.jsonl"),
        (no_rows, "has 0 x and 0 y"),
        (other_shape, "input_shape"),
        (channels_last, "store x as the network gets it"),
        (held_out_elsewhere, "names no rows of x"),
        (no_client, "is of no client of the record"),
        (a_link, "it is a link"),
        (pickled, "pickled objects are refused"),
    ],
)
def test_a_wrong_truth_is_refused_in_one_line(
    recorded: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(recorded / "truth")
    with pytest.raises(UsageError, match=said) as caught:
        imported(recorded)
    assert "\n" not in str(caught.value)
    assert not (recorded / "run").exists()


def test_the_same_site_twice_is_refused(recorded: Path) -> None:
    write_records(recorded / "other", "0", fed(images(0)), labels())
    with pytest.raises(UsageError, match=r"client-0\.npz, .*truth .*as well"):
        imported(recorded, recorded / "other")


def test_all_sites_together_are_bounded(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file has 1,746 bytes, unpacked, and 960 of them are images."""
    monkeypatch.setenv("FDAUDIT_MOST_DATA_BYTES", "1800")
    with pytest.raises(UsageError, match="of other sites"):
        imported(recorded)


@pytest.mark.parametrize("stated", [None, {"mean": 0.5, "std": 3.0}])
def test_inputs_that_the_card_does_not_explain_are_refused(
    recorded: Path, stated: dict[str, float] | None
) -> None:
    with pytest.raises(UsageError, match=r"in \[0, 1\]\. .*`preprocess`"):
        imported(recorded, preprocess=stated)


# -- notes of sites and of the server -----------------------------------------------------------------------------


def noted(folder: Path, *notes: dict[str, Any], nodes: dict[str, str] | None = None) -> list[Path]:
    """Turn the truth of the recorder into what adapters write: the server's, and one site's notes for each note."""
    truth = folder / "truth"
    uses = [json.loads(line) for line in (truth / "uses.jsonl").read_text().splitlines()]
    (truth / "uses.jsonl").unlink()
    replies = [
        {"party": party, "reply": f"key-{site}", "seq": use["seq"]}
        for (site, party), use in zip(enumerate(CLIENTS), uses, strict=True)
    ]
    (truth / "replies.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
    (truth / "nodes.json").write_text(json.dumps(nodes or {"client/0": "77", "client/1": "88"}))
    directories = []
    for number, note in enumerate(notes):
        directory = folder / f"site-{number}"
        directory.mkdir()
        (directory / "notes.jsonl").write_text(json.dumps(note) + "\n")
        directories.append(directory)
    return directories


def test_notes_of_several_sites_join(recorded: Path) -> None:
    sites = noted(
        recorded,
        {"records": [0, 1, 2], "reply": "key-0", "site": "1"},
        {"records": [5], "reply": "key-1", "site": "0"},
        {"records": [3], "reply": "of another run", "site": "0"},
    )
    case_sites = imported(recorded, *sites)
    case = case_sites.case
    uses = case_sites.directory / "vault" / "brought" / "uses.jsonl"
    assert [json.loads(line) for line in uses.read_text().splitlines()] == [
        {"seq": 1, "records": [0, 1, 2]},
        {"seq": 2, "records": [5]},
    ]
    # The first party is site 1, so that its records are those of client-1.npz.
    torch.testing.assert_close(case.dataset.x[case.splits.clients[0].train], images(1), rtol=0, atol=1e-6)


def test_a_line_that_a_kill_cut_off_is_left_out(recorded: Path) -> None:
    [site] = noted(recorded, {"records": [0], "reply": "key-0", "site": "0"})
    with (site / "notes.jsonl").open("a") as file:
        file.write('{"records":[1],"rep')
    uses = imported(recorded, site).directory / "vault" / "brought" / "uses.jsonl"
    assert len(uses.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([{"records": [0], "reply": "key-0"}], "does not give records, reply and site"),
        ([{"records": [-1], "reply": "key-0", "site": "0"}], "are no numbers of records"),
        ([{"records": [0], "reply": "key-0", "site": "a/../b"}], "site|part"),
        ([{"records": [0], "reply": ["key-0"], "site": "0"}], "does not give records, reply and site"),
        ([{"records": [0], "reply": "key-0", "site": "0"}] * 2, "is a reply noted before"),
    ],
)
def test_wrong_notes_are_refused(recorded: Path, notes: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        imported(recorded, *noted(recorded, *notes))


def test_one_party_noted_by_two_sites_is_refused(recorded: Path) -> None:
    sites = noted(
        recorded,
        {"records": [0], "reply": "key-0", "site": "0"},
        {"records": [0], "reply": "key-1", "site": "1"},
    )
    replies = recorded / "truth" / "replies.jsonl"
    replies.write_text(replies.read_text().replace("client/1", "client/0"))
    with pytest.raises(UsageError, match="'0' and '1'"):
        imported(recorded, *sites)


# -- the recorder's own part --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("0", np.ones((2, 3)), [0, 1, 2]), "x, y"),
        (("0", np.ones((0, 3)), []), "x, y"),
        (("0", np.ones((2, 3)), [0, 1], [2]), "held_out"),
        (("0", np.ones((2, 3)), [0, 1], [0, 0]), "held_out"),
        (("../0", np.ones((2, 3)), [0, 1]), "site"),
        (("0", np.array(["a"]), [0]), "tensors"),
    ],
)
def test_records_that_are_none_are_refused(tmp_path: Path, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(RecordError) as caught:
        write_records(tmp_path / "truth", *arguments)
    assert said in caught.value.field
    assert not (tmp_path / "truth").exists()


def test_a_recorder_without_a_truth_holds_no_records(tmp_path: Path) -> None:
    with (
        Recorder(tmp_path / "record", ["server", "client/0"]) as record,
        pytest.raises(RecordError) as caught,
    ):
        record.hold("client/0", np.ones((1, 2)), [0])
    assert caught.value.field == "truth"


def test_a_party_joins_the_record_when_it_is_added(tmp_path: Path) -> None:
    with Recorder(tmp_path / "record", ["server"]) as record:
        record.round(0)
        with pytest.raises(RecordError, match="is no party"):
            record.send("server", "client/0", "silence", {})
        record.add_parties(["client/0", "world", "server"])
        record.send("server", "client/0", "silence", {})
        with pytest.raises(RecordError, match=r"^parties: 'hospital' "):
            record.add_parties(["hospital"])
    said = json.loads((tmp_path / "record" / "record.json").read_bytes())
    assert said["parties"] == ["server", "client/0", "world"]
