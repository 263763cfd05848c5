"""Datasets, partitions and the splits that an audit needs."""

from fdaudit.data.canaries import insert_canaries
from fdaudit.data.datasets import DATASETS, Dataset, load_dataset
from fdaudit.data.partition import class_counts, class_table, partition
from fdaudit.data.public import public_samples
from fdaudit.data.splits import ClientSplit, Splits, make_splits, test_xy

__all__ = [
    "DATASETS",
    "ClientSplit",
    "Dataset",
    "Splits",
    "class_counts",
    "class_table",
    "insert_canaries",
    "load_dataset",
    "make_splits",
    "partition",
    "public_samples",
    "test_xy",
]
