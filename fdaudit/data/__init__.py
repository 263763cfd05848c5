"""Datasets, partitions and the splits that an audit needs."""
