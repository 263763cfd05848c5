"""The public samples of a run, and their labels for a protocol whose parties know them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.data.datasets import Dataset, load_dataset
from fdaudit.data.splits import Splits
from fdaudit.errors import DataError, SpecError
from fdaudit.limits import DATA_BYTES
from fdaudit.rng import SecretStream, child
from fdaudit.spec.schema import DatasetSpec, Spec

__all__ = ["public_samples", "shifted_copies"]


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
    copies, task = spec.public_copies, dataset.task
    if copies > 1:
        if not task.inputs.shifted:
            problem = f"shifts images, and the records are {task.inputs.plural}"
            raise SpecError("public_copies", copies, problem, "Leave it out.")
        if labelled and task.labels.dense:
            problem = "would shift images without their known masks"
            raise SpecError("public_copies", copies, problem, "Leave it out.")
        if copies * x.numel() * x.element_size() > DATA_BYTES.most:
            problem = f"makes {copies * len(x):,} public images, too many to hold"
            raise SpecError("public_copies", copies, problem, "Lower it.")
        x, y = shifted_copies(x, copies), y.repeat(copies, *[1] * (y.dim() - 1))
    return x, y if labelled else None


def shifted_copies(x: Tensor, copies: int) -> Tensor:
    """Return images (n, c, h, w), then copies - 1 times the same images shifted at random: (copies * n, c, h, w).

    Each is moved by up to an eighth of its height and width. Pixels that come in are zero. The shifts are public: a
    fixed generator draws them.
    """
    n, _, height, width = x.shape
    down, right = height // 8, width // 8
    stream = child(0, "public", "copies")
    blocks = [x]
    for _ in range(copies - 1):
        rows = torch.randint(2 * down + 1, (n,), generator=stream)[:, None] + torch.arange(height)
        columns = torch.randint(2 * right + 1, (n,), generator=stream)[:, None] + torch.arange(width)
        wide = F.pad(x, (right, right, down, down))
        shifted = wide[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None]]
        blocks.append(shifted.movedim(-1, 1))  # the indexed dimensions come first
    return torch.cat(blocks)


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
        size, own_size = ("x".join(map(str, one.input_shape)) for one in (other, dataset))
        problem = f"has images of {size}, the clients' are {own_size}"
        remedy = "Set image_size of one of them, or choose a public set of the same kind."
        raise SpecError(field, value, problem, remedy)
    return other
