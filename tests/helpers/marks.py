"""Marks of tests that need a data set."""

from __future__ import annotations

import os

import pytest

ON_DATA = [
    pytest.mark.data,
    pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is unset"),
]
SLOW_ON_DATA = [pytest.mark.slow, *ON_DATA]
