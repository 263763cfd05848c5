"""Datasets, partitions and the splits that an audit needs."""

from fdaudit.data.datasets import DATASETS, Dataset, DatasetSpec, load_dataset
from fdaudit.data.partition import PartitionSpec, class_table, partition
from fdaudit.data.splits import ClientSplit, Splits, SplitSpec, make_splits, test_xy

__all__ = [
    "DATASETS",
    "ClientSplit",
    "Dataset",
    "DatasetSpec",
    "PartitionSpec",
    "SplitSpec",
    "Splits",
    "class_table",
    "load_dataset",
    "make_splits",
    "partition",
    "test_xy",
]
