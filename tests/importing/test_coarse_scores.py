"""What leaves a site depends on no single record, whatever an asker with the source code sends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fdaudit
from fdaudit.errors import UsageError
from fdaudit.importing.coarse_scores import (
    DEFINED,
    LEAST_RECORDS,
    MOST_ANSWERS,
    coarse_shares,
    defined,
    together,
)
from fdaudit.importing.site_score import score_at_site
from fdaudit.storage.answered import LEDGER

from .site_askers import (
    VICTIM,
    answered_under_other_names,
    answers_until_refused,
    behind,
    climbed,
    grey,
    membership,
    nearest,
    noise,
    shares_by_one_class_each,
    shares_of,
)
from .site_cases import Asker, Two


@pytest.fixture
def asker(made: Two, tmp_path: Path) -> Asker:
    return Asker(made, tmp_path / "asks", [made.truth])


# -- parcels of class shares --------------------------------------------------------------------------------------


def test_parcels_hold_five_labels_or_more_and_each_share_is_less_than_one_off() -> None:
    generator = np.random.default_rng(0)
    for _ in range(500):
        counts = torch.from_numpy(generator.integers(0, 60, size=generator.integers(2, 30)))
        total = int(counts.sum())
        if total < LEAST_RECORDS:
            continue
        shares = coarse_shares(counts)
        parcels = total // max(LEAST_RECORDS, -(-total // 20))
        assert float(shares.sum()) == pytest.approx(1)
        assert torch.allclose(shares * parcels, (shares * parcels).round())
        assert float((shares - counts / total).abs().max()) < 1 / parcels


def test_labels_that_move_within_their_parcels_are_not_told() -> None:
    told = coarse_shares(torch.tensor([50, 30, 20]))
    for other in ([51, 29, 20], [50, 31, 19], [49, 30, 21], [52, 30, 18]):
        assert torch.equal(coarse_shares(torch.tensor(other)), told)


# -- figures ------------------------------------------------------------------------------------------------------


def test_the_figures_of_all_parties_follow_from_those_of_each() -> None:
    one = (defined("psnr_gain", 4.5, 1.0, 8), defined("psnr", 15.0, None, 8))
    other = (defined("psnr_gain", 0.0, 0.0, 5),)
    (gain,) = together({"client/0": one, "client/1": other})
    assert (gain.value, gain.low, gain.high, gain.n) == (0.0, 0.0, 20.0, 13)
    assert [f.name for f in together({"client/0": one})] == ["psnr_gain", "psnr"]
    shares = {
        k: (defined("label_tv", v, None, 1), defined("label_tv_prior", 0.5, None, 1))
        for k, v in (("client/0", 0.1), ("client/1", 0.3))
    }
    found = {f.name: f.value for f in together(shares)}
    assert found == {"label_tv_mean": 0.2, "label_tv_worst": 0.1, "label_tv_prior_mean": 0.5}


def test_a_figure_without_a_definition_is_none() -> None:
    with pytest.raises(KeyError):
        defined("psnr_max", 1.0, None, 8)
    assert {"psnr_gain", "psnr", "label_tv", "label_tv_prior"} == set(DEFINED)


# -- askers -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_record_is_confirmed_only_to_whoever_has_half_of_the_others(made: Two, tmp_path: Path) -> None:
    x, _ = behind(made)
    for known in (0, len(x) // 2 - 1):
        answers = []
        for inside in (True, False):
            (made.truth / LEDGER).unlink(missing_ok=True)
            place = tmp_path / f"{known}-{inside}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_STATE_HOME", str(place / "state"))
                fresh = Asker(made, place, [made.truth])
                answers.append(membership(made, fresh, inside=inside, known=known))
        assert answers == [[0.0] * 5] * 2


@pytest.mark.thorough
def test_a_climb_from_the_prior_gets_no_record_closer(made: Two, asker: Asker) -> None:
    x, _ = behind(made)
    start = made.run.case.auxiliary[0][: len(x)]
    end = climbed(made, asker, start, noise(0.1))
    assert nearest(end, x) == nearest(start, x)
    assert asker.asked == MOST_ANSWERS


@pytest.mark.thorough
def test_class_shares_come_no_closer_than_a_parcel(made: Two, asker: Asker) -> None:
    truth = shares_of(made)
    found = shares_by_one_class_each(asker)
    records = len(made.source.case.records(VICTIM)[1])
    parcel = LEAST_RECORDS / records
    assert float((found - truth).abs().max()) > parcel / 4
    with pytest.raises(UsageError, match=f"{MOST_ANSWERS} answers about label-distribution"):
        asker.about_shares([0.1] * 10)


@pytest.mark.thorough
def test_every_answer_about_class_shares_is_a_function_of_the_parcels(
    made: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sites whose parties differ by a record within its parcel answer alike, so no question tells them apart."""
    truth = Path(shutil.copytree(made.truth, tmp_path / "other"))
    (truth / LEDGER).unlink(missing_ok=True)
    held = dict(np.load(truth / "records.npz"))
    rows = made.source.case.splits.clients[0].train
    before = torch.bincount(torch.from_numpy(held["y"])[rows], minlength=10)
    for row in rows.tolist():
        changed = held["y"].copy()
        changed[row] = (changed[row] + 1) % 10
        after = torch.bincount(torch.from_numpy(changed)[rows], minlength=10)
        if torch.equal(coarse_shares(before), coarse_shares(after)):
            break
    assert not torch.equal(before, after)
    np.savez(truth / "records.npz", x=held["x"], y=changed)
    answers = []
    for name, place in (("one", made.truth), ("two", truth)):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))  # they share all records but one
        answers.append(shares_by_one_class_each(Asker(made, tmp_path / f"asks-{name}", [place])).tolist())
    assert answers[0] == answers[1]


@pytest.mark.thorough
def test_no_name_adversary_or_choice_of_messages_gets_more_answers(made: Two, asker: Asker) -> None:
    assert answered_under_other_names(made, asker) == MOST_ANSWERS


@pytest.mark.thorough
def test_neither_a_removed_ledger_nor_a_copied_truth_gets_more_answers(
    made: Two, asker: Asker, tmp_path: Path
) -> None:
    assert answers_until_refused(asker) == MOST_ANSWERS
    (made.truth / LEDGER).unlink()
    assert answers_until_refused(asker) == 0
    copy = Path(shutil.copytree(made.truth, tmp_path / "copy"))
    assert answers_until_refused(Asker(made, tmp_path / "more", [copy])) == 0


@pytest.mark.thorough
def test_too_few_records_or_too_many_images_are_refused_without_a_charge(
    made: Two, asker: Asker, tmp_path: Path
) -> None:
    message = made.uploads(VICTIM)[0]
    with pytest.raises(UsageError, match=r"9 images.* 8 records"):
        asker.about_images(grey(9), [message])
    truth = Path(shutil.copytree(made.truth, tmp_path / "few"))
    uses = [json.loads(line) for line in (truth / "uses.jsonl").read_bytes().splitlines()]
    kept = [{**u, "records": u["records"][:4] if u["seq"] == message else u["records"]} for u in uses]
    (truth / "uses.jsonl").write_text("".join(json.dumps(u) + "\n" for u in kept))
    few = Asker(made, tmp_path / "asks-few", [truth])
    for messages in ([message], made.uploads(VICTIM)):  # others' records do not hide those of one message
        with pytest.raises(UsageError, match="than 5 records"):
            few.about_images(grey(4), messages)
    assert not (truth / LEDGER).exists()
    assert not (made.truth / LEDGER).exists()


@pytest.mark.thorough
def test_the_answer_is_counted_before_it_is_computed(
    made: Two, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fdaudit.importing.site_score as module

    path = asker.sends(label_distribution=[{"target": VICTIM, "distribution": [0.1] * 10}])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "coarse_figures", killed)
        with pytest.raises(KeyboardInterrupt):
            score_at_site(path, path.parent / "out.json", truth=[made.truth])
    assert not (path.parent / "out.json").exists()
    assert asker.asks(label_distribution=[{"target": VICTIM, "distribution": [0.1] * 10}])["asked"] == 2


@pytest.mark.thorough
def test_nothing_is_scored_after_candidates_were_handed_out_at_the_site(
    made: Two, asker: Asker, tmp_path: Path
) -> None:
    whole = fdaudit.import_record(
        made.site / "record",
        tmp_path / "whole",
        card=made.site / "card.yaml",
        truth=[made.truth],
        audit={"profile": "quick", "threads": 1, "victims": 1},
    )
    asker.about_shares([0.1] * 10)
    fdaudit.export_view(whole, "server", tmp_path / "handout", challenges=True)
    with pytest.raises(UsageError, match="handed out"):
        asker.about_shares([0.1] * 10)
    with pytest.raises(UsageError, match="handed out"):
        asker.about_images(grey(8), made.uploads(VICTIM)[:1])
    asker.about_shares([0.1] * 10, target="client/1")  # nobody got these
