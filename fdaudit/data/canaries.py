"""Canaries: records added to test a claimed ε; a fair coin decides whether each is trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fdaudit.data.datasets import Dataset
from fdaudit.data.partition import class_table
from fdaudit.data.raw import image_origins
from fdaudit.data.splits import ClientSplit, Splits
from fdaudit.errors import SpecError
from fdaudit.rng import SecretStream
from fdaudit.spec.privacy import CanarySpec

__all__ = ["insert_canaries"]


def insert_canaries(
    dataset: Dataset, splits: Splits, spec: CanarySpec, stream: Callable[[str], SecretStream]
) -> tuple[Dataset, Splits]:
    """Add canaries to the dataset, and the ones that coins choose to their clients' training data.

    Guarantees:
      * each canary, or exactly one of each pair, is trained on by a fair coin, independent of everything else; under
        `unit: client` one coin decides all pairs of a client;
      * canaries are new records at the end of the dataset: existing indices keep their meaning;
      * `mislabelled` canaries remove records from the client's training data, for all outcomes of the coins, but never
        a candidate of the membership challenge.

    Args:
        dataset: the records.
        splits: the records of each client.
        spec: the number and kind of canaries, and their clients.
        stream: the named stream of a client, from the vault's secret.

    Raises:
        SpecError: a client has too few records to make canaries of, or records are texts or labels are masks.
    """
    labels = dataset.task.labels
    why = labels.no_canaries or dataset.task.inputs.no_canaries
    if why:
        problem = f"cannot be made for {dataset.name}: {why}"
        raise SpecError("canaries.kind", spec.kind, problem, "Remove canaries.")
    clients = list(splits.clients)
    x, y = [dataset.x], [dataset.y]
    n = total = len(dataset.y)
    for number in spec.clients:
        draws = stream(f"client/{number}")
        count = spec.count * (2 if spec.design == "matched-pairs" else 1)
        train = clients[number].train
        if spec.kind == "noise":
            new_x = torch.from_numpy(draws.uniform(count, *dataset.input_shape)).float()
            new_y = labels.canaries(count, dataset.classes, draws)
        else:
            source, train = _set_aside(clients[number], count, number, draws)
            new_x, new_y = dataset.x[source], labels.other(dataset.y[source], dataset.classes, draws)
        canaries = torch.arange(total, total + count)
        total += count
        trained = canaries[_coins(count, spec, draws)]
        clients[number] = replace(clients[number], train=torch.cat([train, trained]), canaries=canaries)
        x.append(new_x)
        y.append(new_y)
    identities, origins, groups = dataset.identities, dataset.origins, dataset.groups
    if identities is not None:  # a canary is nobody
        identities = torch.cat([identities, torch.full((total - n,), -1)])
    if origins is not None:
        origins = torch.cat([origins, *map(image_origins, x[1:])])
    if groups is not None:  # each canary is a group of its own
        groups = torch.cat([groups, groups.max() + 1 + torch.arange(total - n)])
    larger = replace(
        dataset, x=torch.cat(x), y=torch.cat(y), identities=identities, origins=origins, groups=groups
    )
    table = class_table(larger.y, [c.train for c in clients], larger.classes)
    return larger, replace(splits, clients=tuple(clients), class_table=table)


def _set_aside(client: ClientSplit, count: int, number: int, draws: SecretStream) -> tuple[Tensor, Tensor]:
    """Return the records (count,) of a client that become canaries, and the remaining ones."""
    free = client.train[~torch.isin(client.train, client.members)]
    if len(free) < count:
        problem = f"needs {count} records of client/{number} to mislabel, who has {len(free)} besides its candidates"
        raise SpecError("canaries.count", count, problem, "Use fewer, more data, or kind: noise.")
    source = free[torch.from_numpy(draws.permutation(len(free)))[:count]]
    return source, client.train[~torch.isin(client.train, source)]


def _coins(n: int, spec: CanarySpec, draws: SecretStream) -> Tensor:
    """Return whether each of a client's canaries (n,) is trained on; the second halves of pairs follow the first."""
    if spec.design == "coin-flips":
        return torch.from_numpy(draws.integers(2, n)).bool()
    coins = 1 if spec.unit == "client" else n // 2
    first = torch.from_numpy(draws.integers(2, coins)).bool().expand(n // 2)
    return torch.cat([first, ~first])
