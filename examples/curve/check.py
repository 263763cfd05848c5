"""Check what the page on a utility-privacy curve says of its figures."""

from __future__ import annotations

import csv
from pathlib import Path

with Path("curves/summary.csv").open(encoding="utf-8") as file:
    rows = list(csv.DictReader(file))

mean = {(r["protocol"], r["level"], r["measure"]): float(r["mean"]) for r in rows}
for protocol in ("fedavg", "fedkd"):
    levels = [mean[protocol, level, "utility"] for level in ("1.0", "4.0", "16.0", "inf")]
    assert levels == sorted(levels), levels
assert mean["fedavg", "inf", "psnr_gain"] > 3
assert mean["fedavg", "inf", "membership_auc"] > 0.7
for epsilon in ("1.0", "4.0", "16.0"):
    assert mean["fedavg", epsilon, "psnr_gain"] < 0
    assert mean["fedavg", epsilon, "membership_auc"] < mean["fedavg", "inf", "membership_auc"] - 0.05
assert all(float(r["epsilon_ledger"]) <= float(r["level"]) for r in rows)
assert all(int(r["n"]) == 3 for r in rows if r["measure"] == "utility")
