"""The loop with a red team: what is handed out holds no truth, and what comes back is scored or refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fdaudit
from fdaudit.adversary.view import open_view
from fdaudit.audit.guesses import Guesses, to_guesses
from fdaudit.errors import IntegrityError
from fdaudit.storage.vault import Vault

from ..helpers.results import cell_of, values_of
from ..helpers.run_cases import three_clients, tree

GRADIENTS = {"rounds": 1, "batch_size": 1, "local_steps": 1, "upload": "gradient"}
SPEC = three_clients(
    seed=7,
    dataset={"name": "digits", "limit": 300},
    splits={"candidates": 10},
    model={"name": "mlp", "params": {"widths": [8]}},
    protocol={"name": "fedavg", "params": GRADIENTS},
    adversaries=["server"],
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, what its server is handed with candidates, and the run as it was before (`quiet`)."""
    home = tmp_path_factory.mktemp("red-team")
    run = fdaudit.run(SPEC, home / "run")
    shutil.copytree(home / "run", home / "quiet")
    fdaudit.export_view(run, "server", home / "server", challenges=True)
    return home


@pytest.fixture
def home(made, tmp_path):
    """A copy to spoil."""
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


def card(home: Path) -> dict[str, Any]:
    return json.loads((home / "server" / "card.json").read_text())


def guesses(home: Path, **changes: Any) -> Path:
    """A file of class shares, or of what `changes` says; None leaves a field out."""
    shown = card(home)
    value = {
        "schema": "fdaudit-guesses/1",
        "name": "mine",
        "adversary": "server",
        "view": shown["view_sha256"],
        "label_distribution": [{"target": k, "distribution": [0.1] * 10} for k in shown["victims"]],
        **changes,
    }
    path = home / "guesses.json"
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))
    return path


def membership(home: Path, score=lambda x, y, pair: torch.arange(float(len(y)))) -> list[dict[str, Any]]:
    found = []
    for target, issued in card(home)["challenges"].items():
        file = home / "server" / issued["file"]
        scores = score(**load_file(file)).tolist()
        found.append(
            {"target": target, "challenge": hashlib.sha256(file.read_bytes()).hexdigest(), "scores": scores}
        )
    return found


def by_membership(home: Path, given: list[dict[str, Any]]) -> Path:
    return guesses(home, label_distribution=None, membership=given)


# -- what is handed out -------------------------------------------------------------------------------------------


def test_what_is_handed_out_is_the_view_knowledge_candidates_and_a_card(made):
    out = made / "server"
    assert {p.name for p in out.iterdir()} == {
        "README.md",
        "card.json",
        "challenges",
        "guesses.schema.json",
        "knowledge",
        "view",
    }
    run = fdaudit.load(made / "run")
    view = open_view(out / "view")
    assert [m.seq for m in view.messages] == [m.seq for m in run.view("server").messages]
    assert set(load_file(out / "knowledge" / "auxiliary.safetensors")) == {"x", "y"}
    assert set(load_file(out / "challenges" / "client-0.safetensors")) == {"x", "y", "pair"}
    assert card(made)["view_sha256"] == hashlib.sha256((out / "view" / "view.json").read_bytes()).hexdigest()
    assert open_view(out / "view", card(made)["view_sha256"]).name == "server"
    assert card(made)["victims"] == ["client/0", "client/1"]


def test_neither_seed_nor_secret_nor_a_victims_records_are_handed_out(made):
    run = fdaudit.load(made / "run")
    secret = Vault(made / "run" / "vault").secrets.secret
    everything = b"".join(tree(made / "server").values())
    assert secret not in everything
    assert secret.hex().encode() not in everything
    shown = {
        r.numpy().tobytes() for r in load_file(made / "server" / "challenges" / "client-0.safetensors")["x"]
    }
    x, _ = run.case.records("client/0")
    hidden = [r for r in x if r.numpy().tobytes() not in shown]
    assert hidden
    assert not any(r.numpy().tobytes() in everything for r in hidden)


def test_no_file_is_the_runs_own(made):
    """A red team that writes to its copy must not write to the record."""
    inodes = {p.stat().st_ino for p in (made / "run").rglob("*") if p.is_file()}
    assert not [p for p in (made / "server").rglob("*") if p.is_file() and p.stat().st_ino in inodes]


def test_a_coalition_is_handed_its_own_records_and_other_victims(made, tmp_path):
    run = fdaudit.load(made / "run")
    out = fdaudit.export_view(run, "server+client/0", tmp_path / "out")
    assert json.loads((out / "card.json").read_text())["victims"] == ["client/1", "client/2"]
    assert not (out / "challenges").exists()
    own = load_file(out / "view" / "own-client-0.safetensors")
    assert torch.equal(own["x"], run.case.records("client/0")[0])


def test_an_export_with_a_changed_line_does_not_open(home):
    log = home / "server" / "view" / "messages.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"step":0', b'"step":1')
    log.write_bytes(b"\n".join(lines))
    with pytest.raises(IntegrityError, match="match its digest"):
        open_view(home / "server" / "view")


# -- what comes back ----------------------------------------------------------------------------------------------


def test_class_shares_are_scored_and_shown(home, cli):
    run = fdaudit.load(home / "quiet")
    y = [run.case.records(k)[1] for k in ("client/0", "client/1")]
    truth = [
        {"target": f"client/{k}", "distribution": (torch.bincount(v, minlength=10) / len(v)).tolist()}
        for k, v in enumerate(y)
    ]
    path = guesses(home, label_distribution=truth, source="a test", assumes=["luck"])
    code, out, _ = cli("score", home / "quiet", path)
    assert code == 0
    assert "label_tv_mean" in out
    cell = cell_of(fdaudit.load(home / "quiet"), "external-mine")
    assert (cell["status"], cell["adversary"], cell["source"], cell["assumes"]) == (
        "run",
        "server",
        "a test",
        ["luck"],
    )
    assert values_of(cell)["label_tv_mean"] == pytest.approx(0, abs=1e-6)
    assert "external-mine" in fdaudit.report(run).read_text("utf-8")
    assert run.verify() == []


def test_membership_is_scored_as_the_runs_own_attacks_are(home):
    run = fdaudit.load(home / "quiet")
    x, _ = (torch.cat(t) for t in zip(*(run.case.records(k) for k in run.case.clients), strict=True))
    trained_on = {r.numpy().tobytes() for r in x}
    known = membership(
        home, lambda x, y, pair: torch.tensor([float(r.numpy().tobytes() in trained_on) for r in x])
    )
    cell = fdaudit.score(run, by_membership(home, known))
    assert {f.name: f.value for f in cell.figures}["auc"] == 1.0


def test_a_reconstruction_is_scored_with_its_pictures(home):
    run = fdaudit.load(home / "quiet")
    seq = next(m.seq for m in run.view("server").messages if m.kind == "gradient")
    save_file({"images": torch.full((1, 1, 8, 8), 0.5)}, home / "images.safetensors")
    one = [{"target": "client/0", "messages": [seq], "images": "images.safetensors"}]
    cell = fdaudit.score(run, guesses(home, label_distribution=None, reconstruction=one))
    assert {f.name for f in cell.figures} >= {"psnr", "psnr_prior"}
    assert (home / "quiet" / cell.targets[0].images[0].guess).is_file()


def test_submissions_are_counted_and_a_name_stays_with_its_adversary(home):
    run = fdaudit.load(home / "quiet")
    counted = [fdaudit.score(run, guesses(home)).params["submission"] for _ in range(2)]
    assert counted == [1, 2]
    with pytest.raises(fdaudit.FdauditError, match="about label-distribution by"):
        fdaudit.score(run, by_membership(home, membership(home)))


def test_an_outcome_names_the_very_bytes_that_were_scored(home, monkeypatch):
    path = guesses(home)
    scored = hashlib.sha256(path.read_bytes()).hexdigest()

    def swapped(given, folder, shape):
        path.write_text("another file by now")
        return to_guesses(given, folder, shape)

    monkeypatch.setattr("fdaudit.audit.red_team.to_guesses", swapped)
    cell = fdaudit.score(fdaudit.load(home / "quiet"), path)
    assert cell.params["guesses_sha256"] == scored


# -- what is refused ----------------------------------------------------------------------------------------------


def _never_issued(home: Path) -> Path:
    given = membership(home)
    given[0]["challenge"] = "0" * 64
    return by_membership(home, given)


def _images(home: Path, name: str = "images.safetensors", write: Any = None, messages: Any = (0,)) -> Path:
    if isinstance(write, bytes):
        (home / name).write_bytes(write)
    elif write is not None:
        save_file(write, home / name)
    one = [{"target": "client/0", "messages": list(messages), "images": name}]
    return guesses(home, label_distribution=None, reconstruction=one)


def _linked(home: Path) -> Path:
    save_file({"images": torch.zeros(1, 1, 8, 8)}, home / "elsewhere")
    (home / "images.safetensors").symlink_to(home / "elsewhere")
    return _images(home)


def _text(text: str):
    def write(home: Path) -> Path:
        (home / "guesses.json").write_text(text)
        return home / "guesses.json"

    return write


def _shares(*rows: tuple[str, list[float]]):
    return lambda home: guesses(home, label_distribution=[{"target": t, "distribution": d} for t, d in rows])


EVEN = [0.1] * 10
REFUSED: dict[str, tuple[Any, str]] = {
    "no such file": (lambda home: home / "none.json", "cannot be read"),
    "no JSON": (_text("{"), "is not JSON"),
    "nested without end": (_text("[" * 100_000), "is not JSON"),
    "a list": (_text("[]"), "is not a mapping"),
    "an unknown field": (lambda home: guesses(home, luck=1), "guesses.luck"),
    "another format": (lambda home: guesses(home, schema="fdaudit-guesses/2"), "guesses.schema"),
    "a name with a slash": (lambda home: guesses(home, name="../x"), "guesses.name"),
    "a forged view": (lambda home: guesses(home, view="0" * 64), "is not the digest of what server saw"),
    "another's view": (lambda home: guesses(home, adversary="world"), "is not the digest of what world saw"),
    "an adversary who is nobody": (lambda home: guesses(home, adversary="mallory"), "mallory"),
    "no guess": (lambda home: guesses(home, label_distribution=[]), "holds 0 kinds"),
    "two kinds": (lambda home: guesses(home, membership=membership(home)), "holds 2 kinds"),
    "a victim left out": (_shares(("client/0", EVEN)), "the victims are"),
    "a victim twice": (_shares(("client/0", EVEN), ("client/0", EVEN)), "names one victim twice"),
    "no victim": (_shares(("client/0", EVEN), ("client/2", EVEN)), "the victims are"),
    "nine classes": (_shares(("client/0", EVEN[:9]), ("client/1", EVEN)), "each of 10 classes"),
    "shares of two": (_shares(("client/0", [0.2] * 10), ("client/1", EVEN)), "do not sum to 1"),
    "a share that is NaN": (
        _shares(("client/0", [float("nan")] * 10), ("client/1", EVEN)),
        "NaN is no number",
    ),
    "a share as text": (_shares(("client/0", ["0.1"] * 10), ("client/1", EVEN)), "distribution.0"),
    "candidates never issued": (_never_issued, "is not the digest of the candidates issued for client/0"),
    "a client never challenged": (
        lambda home: by_membership(home, [{**membership(home)[0], "target": "client/2"}]),
        "was not challenged",
    ),
    "one score too few": (
        lambda home: by_membership(home, [{**g, "scores": g["scores"][1:]} for g in membership(home)]),
        "one finite score for each of",
    ),
    "an infinite score": (
        lambda home: by_membership(
            home, membership(home, lambda x, y, pair: torch.full((len(y),), torch.inf))
        ),
        "Infinity is no number",
    ),
    "images elsewhere": (lambda home: _images(home, "../images.safetensors"), "images"),
    "images by an absolute path": (lambda home: _images(home, "/etc/x.safetensors"), "images"),
    "images behind a link": (_linked, "is no file"),
    "images that are missing": (_images, "is no file"),
    "images that are damaged": (lambda home: _images(home, write=b"nonsense"), "cannot be read"),
    "images of another shape": (
        lambda home: _images(home, write={"images": torch.zeros(1, 3, 8, 8)}),
        "holds images of shape (1, 3, 8, 8)",
    ),
    "images under another name": (
        lambda home: _images(home, write={"x": torch.zeros(1, 1, 8, 8)}),
        "holds no images",
    ),
    "images out of range": (
        lambda home: _images(home, write={"images": torch.full((1, 1, 8, 8), float("nan"))}),
        "outside [0, 1]",
    ),
    "a message that nobody saw": (
        lambda home: _images(home, write={"images": torch.zeros(1, 1, 8, 8)}, messages=(999,)),
        "nobody in this view",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_wrong_is_one_line_and_changes_nothing(case, home, cli):
    write, says = REFUSED[case]
    path, before = write(home), tree(home / "quiet")
    code, out, err = cli("score", home / "quiet", path)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert says in err
    assert tree(home / "quiet") == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("mallory", "--out", "new"), "mallory"), (("server", "--out", "server"), "exists already")],
)
def test_an_export_that_cannot_be_is_one_line_and_leaves_nothing(home, monkeypatch, arguments, says, cli):
    monkeypatch.chdir(home)
    before = sorted(p.name for p in home.iterdir())
    code, out, err = cli("export-view", "run", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert says in err
    assert sorted(p.name for p in home.iterdir()) == before


def test_the_commands_speak_json(home, cli):
    code, out, _ = cli("export-view", home / "quiet", "world", "--out", home / "w", "--json")
    assert code == 0
    assert json.loads(out)["card"]["adversary"] == "world"
    code, out, _ = cli("score", home / "quiet", guesses(home), "--json")
    assert (code, json.loads(out)["id"]) == (0, "server/external-mine")


def test_every_field_of_the_schema_has_a_meaning(made):
    shipped = json.loads((made / "server" / "guesses.schema.json").read_text())
    assert shipped == json.loads(json.dumps(Guesses.model_json_schema(by_alias=True)))
    for owner in (shipped, *shipped["$defs"].values()):
        for name, field in owner["properties"].items():
            assert field.get("description"), name
