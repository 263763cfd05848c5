"""Partitions of records over clients: evenly, by class, by site, or by a Dirichlet draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fdaudit.errors import DataError, SpecError
from fdaudit.limits import MOST_TABLE
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import PartitionSpec
from fdaudit.tasks import labels_of

__all__ = ["class_counts", "class_table", "partition"]

_MOST_DRAWS = 10_000
"""Draws of Dirichlet shares, until each client has as many records as asked for."""
_REMEDIES = {
    "iid": "Use fewer clients or more data.",
    "by-class": "Use fewer clients, more data, or more classes a client.",
    "by-site": "Use fewer clients: each one is a site.",
    "dirichlet": "Raise `partition.alpha`, use fewer clients or more data.",
}


def partition(
    y: Tensor,
    clients: int,
    spec: PartitionSpec,
    stream: SecretStream,
    classes: int,
    minimum: int = 1,
    *,
    sites: Tensor | None = None,
    pictures: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the indices of each client's records.

    - `iid`: a random order, cut into parts whose lengths differ by at most one.
    - `by-class`: clients in turn take the `classes_per_client` classes with the fewest holders so far (ties at random).
      Every class is then shared evenly among its holders (Shao 2023's strong and weak non-IID).
    - `by-site`: client k gets all records of site k; records of other sites are left over.
    - `dirichlet`: for every class, p ~ Dir_K(α), and client k gets the share p_k of it (Shao 2023, the
      supplement's Dir_K(β)). `capped` leaves out clients that hold an even share of all records already, and `least`
      repeats the draw until each client has enough (Lin et al. 2020's code).

    Multi-label records belong to several classes. `dirichlet` assigns each record to one of its classes, drawn
    uniformly; records without a class form one more class. `by-class` is refused: no client could be limited to
    `classes_per_client` classes. A mask has pixels of several classes: masks are shared out by `iid` or `by-site`.

    Guarantees:
      * no record goes to two clients, nor, under `iid`, a picture that several records were cut from;
      * every record goes to some client, except under `by-class` with `clients * classes_per_client` below
        the number of classes: then the classes without a holder are left over;
      * under `by-class` each client has exactly `classes_per_client` classes;
      * only `y`, `sites`, `pictures` and the generator decide.

    Args:
        y: (n,) labels of the records to share out, (n, C) of the multi-label task, or masks (n, h, w).
        clients: number of clients, K.
        spec: the partition rule.
        stream: source of every random choice.
        classes: number of classes, C.
        minimum: fewest records that a client may get.
        sites: (n,) site of each record.
        pictures: (n,) picture that each record was cut from; default: every record is one.

    Returns:
        K ascending int64 tensors of positions in `y`.

    Raises:
        DataError: some client would get fewer than `minimum` records, or a class cannot be shared out.
        SpecError: the rule does not exist for these records.
    """
    if clients < 1:
        raise DataError("clients", clients, "is not a number of clients", "Give at least 1.")
    _refuse_large_table(clients, classes)
    if spec.name == "by-site":
        parts = _by_site(sites, clients)
    elif pictures is not None and spec.name == "iid":
        parts = _whole_pictures(pictures, clients, stream)
    else:
        labels = labels_of(y)
        unshared = labels.unshared
        if unshared is not None and spec.name in unshared.rules:
            raise SpecError("partition.name", spec.name, unshared.problem, unshared.remedy)
        if not labels.one_class and spec.name != "iid":
            y, classes = labels.main_class(y, stream), classes + 1
        if spec.name == "iid":
            parts = list(torch.from_numpy(stream.permutation(len(y))).tensor_split(clients))
        elif spec.name == "by-class":
            parts = _by_class(y, clients, spec, stream, classes)
        else:
            parts = _dirichlet(y, clients, spec, stream, classes)
    sizes = [len(part) for part in parts]
    if min(sizes) < minimum:
        share = f"{min(sizes)} of {len(y)} records"
        problem = f"leaves client/{sizes.index(min(sizes))} with {share}, fewer than {minimum}"
        raise DataError("partition.name", spec.name, problem, _REMEDIES[spec.name])
    return tuple(part.sort().values for part in parts)


def class_table(y: Tensor, parts: Sequence[Tensor], classes: int) -> Tensor:
    """Return the number of records by client and class, int64 (clients, classes); each of `parts` indexes `y`.

    Raises:
        DataError: the table is too large.
    """
    _refuse_large_table(len(parts), classes)
    return torch.stack([class_counts(y[part], classes) for part in parts])


def _refuse_large_table(clients: int, classes: int) -> None:
    """Refuse a table by client and class that takes too much memory."""
    entries = clients * classes
    if entries > MOST_TABLE:
        problem = f"by {clients:,} clients are {entries:,} entries, more than {MOST_TABLE:,}"
        raise DataError("classes", classes, problem, "Use fewer clients, or data of fewer classes.")


def class_counts(y: Tensor, classes: int) -> Tensor:
    """Return how often each class occurs in labels, int64 (classes,): in records, or of masks in pixels."""
    return labels_of(y).counts(y, classes)


def _by_site(sites: Tensor | None, clients: int) -> list[Tensor]:
    if sites is None:
        problem = "needs a dataset with sites"
        raise SpecError("partition.name", "by-site", problem, "Use 'masks:FILE' with `source`, or 'iid'.")
    return [(sites == k).nonzero().flatten() for k in range(clients)]


def _whole_pictures(pictures: Tensor, clients: int, stream: SecretStream) -> list[Tensor]:
    """Share out whole pictures: in random order, cut into parts whose numbers of pictures differ by at most one."""
    numbers = pictures.unique()
    shares = numbers[torch.from_numpy(stream.permutation(len(numbers)))].tensor_split(clients)
    return [torch.isin(pictures, share).nonzero().flatten() for share in shares]


def _by_class(
    y: Tensor, clients: int, spec: PartitionSpec, stream: SecretStream, classes: int
) -> list[Tensor]:
    field, per_client = "partition.classes_per_client", spec.classes_per_client or 1
    present = torch.bincount(y, minlength=classes).nonzero().flatten()
    if per_client > len(present):
        problem = f"exceeds the {len(present)} classes there are"
        raise DataError(field, per_client, problem, f"Give at most {len(present)}.")
    holders: dict[int, list[int]] = {int(label): [] for label in present}
    for client in range(clients):
        order = present[torch.from_numpy(stream.permutation(len(present)))].tolist()
        for label in sorted(order, key=lambda c: len(holders[c]))[:per_client]:
            holders[label].append(client)
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for label, sharing in holders.items():
        records = _shuffled(y, label, stream)
        if len(records) < len(sharing):
            problem = f"asks {len(sharing)} clients to share the {len(records)} records of class {label}"
            raise DataError(field, per_client, problem, "Lower it, or use fewer clients or more data.")
        if sharing:
            for client, share in zip(sharing, records.tensor_split(len(sharing)), strict=True):
                parts[client].append(share)
    return [torch.cat(shares) for shares in parts]


def _dirichlet(
    y: Tensor, clients: int, spec: PartitionSpec, stream: SecretStream, classes: int
) -> list[Tensor]:
    least = spec.least or 0
    for _ in range(_MOST_DRAWS if least else 1):
        parts: list[list[Tensor]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, dtype=np.int64)
        for label in range(classes):
            records = _shuffled(y, label, stream)
            shares = stream.dirichlet(spec.alpha or 1.0, clients)
            if spec.capped:
                # A client with an even share of all records gets no more; the others divide its part.
                has_room = sizes < len(y) / clients
                shares = shares * has_room
                shares = shares / shares.sum() if shares.sum() else has_room / has_room.sum()
            if not np.isfinite(shares).all():
                problem = "is beyond what can be drawn"
                raise DataError("partition.alpha", spec.alpha, problem, "Give 0.001 to 1e6.")
            cuts = np.round(np.cumsum(shares)[:-1] * len(records)).astype(np.int64)
            for client, share in enumerate(records.tensor_split(torch.from_numpy(cuts))):
                parts[client].append(share)
                sizes[client] += len(share)
        if sizes.min() >= least:
            return [torch.cat(part) for part in parts]
    problem = f"was not reached by each of {clients} clients in {_MOST_DRAWS} draws"
    raise DataError("partition.least", least, problem, "Lower it, or raise `partition.alpha`.")


def _shuffled(y: Tensor, label: int, stream: SecretStream) -> Tensor:
    records = (y == label).nonzero().flatten()
    return records[torch.from_numpy(stream.permutation(len(records)))]
