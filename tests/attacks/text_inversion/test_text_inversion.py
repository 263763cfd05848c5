"""Words and texts from gradients: exact where they must be, nothing in noise or in other people's gradients."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from fdaudit.attacks import REGISTRY
from fdaudit.attacks.text_inversion.rows import changed_rows
from fdaudit.defenses import REGISTRY as DEFENSES

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import view_of
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, PartyData
from fdaudit.metrics.texts.overlap import bag, matched, rouge_l, spoken
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.tasks import TEXT
from fdaudit.testing.federation import CLASSES, execution
from fdaudit.types import PADDING, AttackTask

from ...helpers import protocol_cases
from ...helpers.protocol_cases import run

pytestmark = pytest.mark.thorough

LENGTH, WORDS = 10, 200
ONE = {"upload": "gradient", "batch_size": 1, "local_steps": 1}


@pytest.fixture(autouse=True)
def _larger(monkeypatch):
    """A vocabulary in which random texts have few words in common."""
    made = architecture(ModelSpec(name="transformer", params={"width": 16}), (LENGTH,), CLASSES, TEXT, WORDS)
    texts = torch.randint(2, WORDS, (7, LENGTH), generator=child(0, "public"))
    shared = Common(networks=Networks(made), execution=execution(), public=texts, task=TEXT)
    monkeypatch.setattr(protocol_cases, "common", lambda *_: shared)


def clients(n=4, seed=0):
    """Return clients with n texts each."""
    found = {}
    for k in range(2):
        x = torch.randint(2, WORDS, (n, LENGTH), generator=child(seed, "texts", k))
        x[::3, 7:] = PADDING
        found[f"client/{k}"] = PartyData(x, torch.randint(CLASSES, (n,), generator=child(seed, "labels", k)))
    return found


def attacked(tmp_path, name, params, *, data=None, defenses=None, **settings):
    """Return client/0's guess and the texts behind its upload of round 0; a reason if the attack does not apply."""
    data = data or clients()
    ran = run(tmp_path / "run", "fedavg", params, rounds=1, clients=data, task=TEXT, defenses=defenses)
    public = ran.protocol.config.model_dump(mode="json")
    view = view_of(ran.folder, "server", parties=ran.parties, hyperparameters=public)
    network = ran.setting.trainers["server"].architecture
    held = (data["client/1"].x, data["client/1"].y)
    knowledge = Knowledge(architecture=network, classes=CLASSES, task=TEXT, auxiliary=held)
    attack = REGISTRY.load(name)
    made = attack(attack.Config(**settings))
    task = AttackTask(targets=("client/0",))
    found = made.applicable(view, knowledge, task)
    if not found.ok:
        return found.reason, None
    (guess,) = made.run(view, knowledge, task, child(0, "attack"))
    used = torch.cat([ran.rounds[0].batches[seq] for seq in guess.messages if seq in ran.rounds[0].batches])
    return guess, data["client/0"].x[used.unique()].numpy()


@pytest.mark.parametrize(
    "params",
    [
        ONE,
        {**ONE, "batch_size": 4},
        {"upload": "model_update", "batch_size": 2, "local_steps": 2},
        {"upload": "model_parameters", "batch_size": 2, "local_epochs": 2, "momentum": 0.9},
    ],
    ids=str,
)
def test_rows_name_exactly_the_words_that_occur(params, tmp_path):
    guess, truth = attacked(tmp_path, "embedding-rows", params)
    assert frozenset(guess.words.tolist()) == bag(truth)
    assert guess.texts is None


def test_rows_of_another_client_name_other_words(tmp_path):
    guess, truth = attacked(tmp_path, "embedding-rows", ONE)
    other = bag(clients()["client/1"].x.numpy())
    right = len(bag(guess.words.numpy()) & bag(truth)) / len(bag(truth))
    assert right == 1
    assert len(bag(guess.words.numpy()) & other) / len(guess.words) < 0.5


@pytest.mark.parametrize("name", ["embedding-rows", "tag"])
def test_noise_hides_the_words(name, tmp_path):
    noise = DEFENSES.load("gaussian-noise")
    defended = {("gradient", "client"): [noise(noise.Config(sigma=1.0))]}
    settings = {"iterations": 5} if name == "tag" else {}
    guess, truth = attacked(tmp_path, name, ONE, defenses=defended, **settings)
    assert len(bag(guess.words.numpy()) & bag(truth)) <= 1


def test_tag_reads_one_text_in_order(tmp_path):
    guess, truth = attacked(tmp_path, "tag", ONE, iterations=300)
    assert guess.texts.shape == (1, LENGTH)
    assert bag(guess.texts.numpy()) == bag(truth)
    assert (guess.texts.numpy() == truth).mean() >= 0.9
    assert guess.objective < 0.1


def test_tag_reads_texts_of_a_small_batch_better_than_chance(tmp_path):
    guess, truth = attacked(tmp_path, "tag", {**ONE, "batch_size": 2}, iterations=200)
    texts = guess.texts.numpy()
    places = matched(texts, truth)
    found = np.mean([rouge_l(spoken(texts[p]), spoken(t)) for p, t in zip(places, truth, strict=True)])
    assert found > 0.4  # texts of 10 words out of 200: other texts share hardly any


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"upload": "model_update", "batch_size": 2, "local_steps": 3}, "takes 3 steps|mixes"),
        ({**ONE, "batch_size": 4}, "mixes 4 texts"),
    ],
)
def test_tag_says_why_it_does_not_apply(params, message, tmp_path):
    reason, _ = attacked(tmp_path, "tag", params, max_texts=3)
    assert isinstance(reason, str)
    assert re.search(message, reason)


def test_changed_rows_stand_out_from_noise_of_all_rows():
    draws = child(0, "noise")
    change = 0.01 * torch.randn(500, 8, generator=draws)
    change[[3, 77]] += 1.0
    assert changed_rows(change).tolist() == [3, 77]
    assert changed_rows(0.01 * torch.randn(500, 8, generator=draws)).tolist() == []
    exact = torch.zeros(500, 8)
    exact[5] = 1e-9
    exact[9] = 1.0
    assert changed_rows(exact).tolist() == [5, 9]
    decayed = torch.full((500, 8), 1e-8)  # weight decay moves every row
    decayed[[5, 9]] = torch.tensor([1e-7, 1.0])[:, None]
    assert changed_rows(decayed).tolist() == [9]  # the other may be rounding
    assert changed_rows(torch.zeros(5, 2)).tolist() == []
