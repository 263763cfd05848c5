"""Time of distillation LiRA on ten clients: shadow models, surrogates and scores, at the `standard` profile.

The attack sees only the answers of one FedMD rehearsal on digits. It attacks the rehearsal's own
members. Target: five minutes for all ten clients on two cores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from fdaudit.attacks import REGISTRY
from fdaudit.protocols import REGISTRY as PROTOCOLS

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.federation.rehearsal import rehearse
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Secrets
from fdaudit.types import AttackTask, Challenge

SEED, CLIENTS, PAIRS = 4, 10, 40
"""Seed of the run, clients attacked, and pairs of candidates of each."""
SPEC = {
    "seed": SEED,
    "profile": "standard",
    "clients": 2,
    "device": "cpu",
    "splits": {"candidates": 10, "proxy": 0.3, "auxiliary": 0.6, "test": 0.05},
    "model": {"name": "cnn-strided", "params": {"channels": [16, 32], "kernel": 3}},
    "protocol": {"name": "fedmd"},
    "references": [],
    "attacks": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="standard", choices=("quick", "standard", "full"))
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    case = simulated_case(load_spec({**SPEC, "threads": asked.threads}), Secrets.draw(SEED))
    x, y = case.auxiliary
    used = CLIENTS * 2 * PAIRS
    challenges, data, members = {}, [], []
    drawn = torch.Generator().manual_seed(SEED)
    for k in range(CLIENTS):
        own = slice(2 * PAIRS * k, 2 * PAIRS * (k + 1))
        coins = torch.randint(2, (PAIRS,), generator=drawn).bool()
        member = torch.stack([coins, ~coins], 1).flatten()
        data.append((x[own][member], y[own][member]))
        members.append(member)
        pair = torch.arange(PAIRS).repeat_interleave(2)
        challenges[f"client/{k}"] = Challenge(target=f"client/{k}", x=x[own], y=y[own], pair=pair)
    fedmd = PROTOCOLS.load("fedmd")
    config = fedmd.Config(rounds=3, warm_up_steps=200, local_steps=50, batch_size=16, public_batch=512)
    knowledge = Knowledge(
        architecture=case.architecture,
        auxiliary=(x[used:], y[used:]),
        train=case.trainer(),
        public=case.public,
        classes=case.dataset.classes,
    )
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        view = rehearse(record, protocol=fedmd, config=config, common=case.common, data=data, seed=SEED)
        took(view, knowledge, challenges, members, asked.profile)


def took(
    view: View,
    knowledge: Knowledge,
    challenges: dict[str, Challenge],
    members: list[torch.Tensor],
    profile: str,
) -> None:
    from sklearn.metrics import roc_auc_score

    cls = REGISTRY.load("distillation-lira")
    runner = cls(cls.Config(**cls.card.profiles[profile]))
    task = AttackTask(targets=tuple(challenges), challenges=challenges)
    print("| profile | clients | wall, s | processor, s | AUC |\n|---|---|---|---|---|")
    wall, busy = time.perf_counter(), time.process_time()
    guesses = runner.run(view, knowledge, task, torch.Generator().manual_seed(0))
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    scores = torch.cat([g.scores for g in guesses])
    auc = roc_auc_score(torch.cat(members).numpy(), scores.numpy())
    print(f"| {profile} | {len(guesses)} | {wall:.0f} | {busy:.0f} | {auc:.3f} |")


if __name__ == "__main__":
    main()
