"""The disjoint sets that an audit needs: members and non-members by client, proxy, auxiliary, test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fdaudit.data.datasets import Dataset
from fdaudit.data.partition import class_table, partition
from fdaudit.data.stratify import apportion, stratified_draw
from fdaudit.errors import DataError
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import PartitionSpec, SplitSpec
from fdaudit.tasks import labels_of

__all__ = ["ClientSplit", "Splits", "make_splits", "set_aside", "split_client", "test_xy"]


@dataclass(frozen=True, eq=False)
class ClientSplit:
    """One client's records, as indices into `Dataset.x`.

    Attributes:
        train: (n,) training records, ascending, members included.
        members: (p,) the half of each matched pair that it trains on.
        non_members: (p,) the other half: `members[i]` and `non_members[i]` are pair i, of one class; of one label set
            if multi-label, as far as there are such pairs; of two pictures if masks.
        canaries: (m,) records made to test an ε; the client trains on those in `train`. If pairs share a coin, the
            first halves come before the second, as in `members` and `non_members`.
    """

    train: Tensor
    members: Tensor
    non_members: Tensor
    canaries: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Splits:
    """All sets of an audit; only the auditor holds them.

    Attributes:
        clients: by client number.
        proxy: indices into `Dataset.x`, ascending.
        auxiliary: indices into `Dataset.x`, ascending.
        test: indices into `Dataset.test_x` if the dataset has one, into `Dataset.x` otherwise; see `test_xy`.
        class_table: (clients, classes) int64, training records of each client by class; a multi-label record counts for
            each of its classes. Of masks, the pixels of each class.
    """

    clients: tuple[ClientSplit, ...]
    proxy: Tensor
    auxiliary: Tensor
    test: Tensor
    class_table: Tensor

    def to_dict(self) -> dict[str, Tensor]:
        """Return a flat mapping of names to int64 tensors, ready for safetensors."""
        rows = {name: getattr(self, name) for name in _SHARED}
        for k, client in enumerate(self.clients):
            rows |= {f"client/{k}/{name}": getattr(client, name) for name in _OWN}
            if len(client.canaries):
                rows[f"client/{k}/canaries"] = client.canaries
        return {name: tensor.contiguous() for name, tensor in rows.items()}


_SHARED = ("proxy", "auxiliary", "test", "class_table")
_OWN = ("train", "members", "non_members")


def make_splits(
    dataset: Dataset,
    clients: int,
    partition_spec: PartitionSpec,
    split_spec: SplitSpec,
    stream: SecretStream,
) -> Splits:
    """Split `dataset` for an audit of `clients` clients.

    Test records (unless the dataset has its own), proxy and auxiliary records are set aside at random, in proportion to
    the classes. The rest is partitioned. In each client, matched pairs of one class are drawn, in proportion to the
    client's classes. One fair coin per pair decides which of the two records is trained on. All other records of the
    client are trained on and are not candidates. A client with too few records for `candidates` pairs gets as many
    pairs as possible.

    Multi-label records are set aside by plain random draws and paired by their whole label set. If this gives too few
    pairs, the remaining records are paired at random. Each pair still has one fair coin, but its two records may have
    different labels.

    Masks are set aside by whole pictures, site by site, and paired at random. One record of a picture may be a
    candidate; its other records are then not used. Under `by-site` no record of a site without a client is used.

    Guarantees:
      * all sets are disjoint, no picture has records in two of them, and members are part of their own client's
        training records only;
      * given the pairs, each of the two records is the member with probability 1/2, independently of everything else:
        members and non-members of a client have the same distribution, class by class;
      * only labels and the stream decide: a changed image changes no index.

    Raises:
        DataError: the partition is impossible, or some client cannot form a single pair.
    """
    y, classes = dataset.y, dataset.classes
    own_test = dataset.test_y is not None
    names = ("proxy", "auxiliary") if own_test else ("test", "proxy", "auxiliary")
    fractions = {name: getattr(split_spec, name) for name in names}
    sites, pictures = dataset.sites, dataset.pictures
    if dataset.task.labels.by_picture:
        if pictures is None:
            pictures = torch.arange(len(y))
        used = torch.arange(len(y))
        if partition_spec.name == "by-site" and sites is not None:
            # Of the largest sites, one for each client; sites are numbered by size.
            if (count := len(sites.unique())) < clients:
                problem = f"is more than the {count} sites of {dataset.name}"
                remedy = f"Use at most {count} clients, or partition 'iid'."
                raise DataError("clients", clients, problem, remedy)
            used = (sites < clients).nonzero().flatten()
        shared, rest = _set_aside_pictures(used, pictures, sites, fractions, stream)
    else:
        shared, rest = set_aside(y, fractions, classes, stream)
    test_y = dataset.test_y
    if test_y is None:
        test_y = y[shared["test"]]
    else:
        shared["test"] = torch.arange(len(test_y))
    if not len(test_y):
        problem = f"leaves no test record out of {len(y)}"
        raise DataError("splits.test", split_spec.test, problem, "Raise the fraction.")
    unmeasurable = labels_of(test_y).unmeasurable(test_y)
    if unmeasurable:
        remedy = "Raise the fraction, or label more test records."
        raise DataError("splits.test", split_spec.test, unmeasurable, remedy)
    minimum = 2 if split_spec.candidates else 1
    try:
        parts = partition(
            y[rest],
            clients,
            partition_spec,
            stream,
            classes,
            minimum,
            sites=None if sites is None else sites[rest],
            pictures=None if pictures is None else pictures[rest],
        )
        client_splits = []
        for k, part in enumerate(parts):
            own = rest[part]
            client_splits.append(split_client(k, own, y, classes, split_spec.candidates, stream, pictures))
    except DataError as error:
        enough = math.ceil(clients * (classes + 1) * len(y) / max(len(rest), 1))
        if not dataset.task.labels.one_class or len(y) >= enough:
            raise
        advice = f"There are {len(y)}; {enough} are enough for {clients} clients and {classes} classes, shared evenly."
        raise DataError(error.field, error.value, error.problem, f"{error.remedy} {advice}") from None
    table = class_table(y, [c.train for c in client_splits], classes)
    return Splits(clients=tuple(client_splits), class_table=table, **shared)


def set_aside(
    y: Tensor, fractions: Mapping[str, float], classes: int, stream: SecretStream
) -> tuple[dict[str, Tensor], Tensor]:
    """Return ascending indices of records drawn for each name, in proportion to the classes, and of the rest.

    Args:
        y: (n,) labels, or (n, C) of the multi-label task.
        fractions: the share of all records, by name; drawn in this order.
        classes: number of classes, C.
        stream: source of every random choice.
    """
    rest = torch.arange(len(y))
    shared: dict[str, Tensor] = {}
    for name, fraction in fractions.items():
        total = round(fraction * len(y))
        sample, remainder = stratified_draw(y[rest], min(total, len(rest)), classes, stream)
        shared[name], rest = rest[sample], rest[remainder]
    return shared, rest


def _set_aside_pictures(
    used: Tensor,
    pictures: Tensor,
    sites: Tensor | None,
    fractions: Mapping[str, float],
    stream: SecretStream,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return ascending indices of records drawn for each name, and of the rest, without cutting a picture.

    From each site, pictures are drawn at random until their records reach the name's fraction of the site's.

    Args:
        used: (m,) indices of the records to draw from.
        pictures: (n,) picture of each record.
        sites: (n,) site of each record; None for one site.
        fractions: the share of the records, by name; drawn in this order.
        stream: source of every random choice.
    """
    rows: dict[str, list[Tensor]] = {name: [] for name in (*fractions, "rest")}
    where = torch.zeros_like(used) if sites is None else sites[used]
    for site in where.unique():
        own = used[where == site]
        numbers = pictures[own].unique()
        queue = numbers[torch.from_numpy(stream.permutation(len(numbers)))].tolist()
        for name, fraction in fractions.items():
            target, count = round(fraction * len(own)), 0
            while queue and count < target:
                records = own[pictures[own] == queue.pop()]
                rows[name].append(records)
                count += len(records)
        unused = torch.tensor(queue, dtype=torch.int64)
        rows["rest"].append(own[torch.isin(pictures[own], unused)])
    shared = {}
    for name, parts in rows.items():
        shared[name] = torch.cat([used[:0], *parts]).sort().values
    rest = shared.pop("rest")
    return shared, rest


def test_xy(dataset: Dataset, splits: Splits) -> tuple[Tensor, Tensor]:
    """Return the test images (n, c, h, w) and labels (n,) or (n, C), from the official split if there is one."""
    if dataset.test_x is not None and dataset.test_y is not None:
        return dataset.test_x[splits.test], dataset.test_y[splits.test]
    return dataset.x[splits.test], dataset.y[splits.test]


test_xy.__test__ = False  # type: ignore[attr-defined]  # pytest collects functions named test_*


def split_client(
    number: int,
    records: Tensor,
    y: Tensor,
    classes: int,
    wanted: int,
    stream: SecretStream,
    pictures: Tensor | None = None,
) -> ClientSplit:
    """Draw a client's matched pairs and toss their coins, with the guarantees of `make_splits`.

    Args:
        number: the client's, for the error.
        records: its indices into `y`, ascending.
        y: (n,) labels, (n, C) of the multi-label task, or masks (n, h, w).
        classes: number of classes, C.
        wanted: the most pairs.
        stream: source of every random choice.
        pictures: (n,) picture of each record, for masks.

    Raises:
        DataError: the client cannot form a single pair.
    """
    labels = labels_of(y)
    pool, alike = records, "records of one class"
    if labels.by_picture:
        pictures = torch.arange(len(y)) if pictures is None else pictures
        pool, alike = _one_of_each(records, pictures, stream), "pictures"
    group, most = labels.groups(y[pool]), len(pool) // 2
    if labels.paired_alike:
        most = int((group.bincount() // 2).sum())
    total = min(wanted, most)
    if wanted and not total:
        problem = f"asks for matched pairs, but client/{number} has no two {alike}"
        remedy = "Use fewer clients, more data, or another partition."
        raise DataError("splits.candidates", wanted, problem, remedy)
    pairs = _pairs(pool, group, total, stream)
    coins = torch.from_numpy(stream.integers(2, len(pairs), 1))
    members = pairs.gather(1, coins).flatten()
    non_members = pairs.gather(1, 1 - coins).flatten()
    unused = torch.isin(records, non_members)
    if labels.by_picture and pictures is not None:
        unused = torch.isin(pictures[records], pictures[pairs.flatten()]) & ~torch.isin(records, members)
    return ClientSplit(train=records[~unused], members=members, non_members=non_members)


def _one_of_each(records: Tensor, pictures: Tensor, stream: SecretStream) -> Tensor:
    """Return one record of each picture, drawn at random, in ascending order."""
    order = records[torch.from_numpy(stream.permutation(len(records)))]
    _, number = pictures[order].unique(return_inverse=True)
    first = torch.full((int(number.max()) + 1,), len(order))
    first.scatter_reduce_(0, number, torch.arange(len(order)), "amin")
    return order[first].sort().values


def _pairs(records: Tensor, group: Tensor, total: int, stream: SecretStream) -> Tensor:
    """Return `total` disjoint pairs (total, 2), in proportion to groups (n,), then at random from the rest."""
    counts = torch.bincount(group).tolist()
    room = [count // 2 for count in counts]
    pairs = []
    for number, share in enumerate(apportion(min(total, sum(room)), counts, room)):
        alike = records[group == number]
        order = torch.from_numpy(stream.permutation(len(alike)))
        pairs.append(alike[order[: 2 * share]].view(-1, 2))
    missing = total - sum(room)
    if missing > 0:
        remainder = records[~torch.isin(records, torch.cat(pairs))]
        order = torch.from_numpy(stream.permutation(len(remainder)))
        pairs.append(remainder[order[: 2 * missing]].view(-1, 2))
    return torch.cat(pairs)
