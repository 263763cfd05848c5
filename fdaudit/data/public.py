"""The public samples of a run, and their labels for a protocol whose parties know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdaudit.data.datasets import Dataset, load_dataset
from fdaudit.data.splits import Splits
from fdaudit.errors import DataError, SpecError

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.rng import SecretStream
    from fdaudit.spec.schema import DatasetSpec, Spec

__all__ = ["public_samples"]


def public_samples(
    spec: Spec, dataset: Dataset, splits: Splits, drawn: SecretStream, *, needed: bool, labelled: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the public samples (n, c, h, w): the proxy split, or the images of another dataset; and their labels.

    Args:
        spec: the run's settings.
        dataset: the clients' dataset.
        splits: its shares.
        drawn: decides which records the other dataset's `limit` keeps.
        needed: whether the protocol needs public samples.
        labelled: whether its parties know their labels. If not, None is returned in place of labels.

    Raises:
        UsageError: the other dataset is absent or does not suit the clients', or there are no samples.
    """
    value: float | str
    if spec.public_dataset is None:
        x, y = dataset.x[splits.proxy], dataset.y[splits.proxy]
        field, value = "splits.proxy", spec.splits.proxy
    else:
        other = _other(spec.public_dataset, spec, dataset, drawn, labelled=labelled)
        x, y = other.x, other.y
        field, value = "public_dataset.name", spec.public_dataset.name
    if needed and not len(x):
        problem = f"leaves no public samples, on which {spec.protocol.name} works"
        raise SpecError(field, value, problem, "Raise splits.proxy, or name a public dataset.")
    return x, y if labelled else None


def _other(
    named: DatasetSpec, spec: Spec, dataset: Dataset, drawn: SecretStream, *, labelled: bool
) -> Dataset:
    """Return the dataset that `public_dataset` names."""
    try:
        other = load_dataset(named, drawn)
    except DataError as error:
        field = error.field.replace("dataset", "public_dataset", 1)
        raise DataError(field, error.value, error.problem, error.remedy) from None
    field, value = "public_dataset.name", named.name
    if labelled and (other.task, other.classes) != (dataset.task, dataset.classes):
        problem = f"has other classes than {spec.dataset.name}, and {spec.protocol.name} uses public labels"
        raise SpecError(field, value, problem, "Name a public dataset with the same classes.")
    if other.input_shape != dataset.input_shape:
        sides = ["x".join(map(str, one.input_shape)) for one in (other, dataset)]
        problem = f"has images of {sides[0]}, the clients' are {sides[1]}"
        remedy = "Set image_size of one of them, or choose a public set of the same kind."
        raise SpecError(field, value, problem, remedy)
    return other
