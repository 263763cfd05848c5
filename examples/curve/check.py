"""Check what the page on a utility-privacy curve says of its figures."""

from __future__ import annotations

import csv
from pathlib import Path

with Path("curves/summary.csv").open(encoding="utf-8") as file:
    rows = list(csv.DictReader(file))

with Path("curves/curves.csv").open(encoding="utf-8") as file:
    alone = [float(r["standalone"]) for r in csv.DictReader(file) if r["standalone"]]

mean = {(r["protocol"], r["defence"], r["level"], r["measure"]): float(r["mean"] or "nan") for r in rows}
LEVELS = ("1.0", "4.0", "16.0")
for protocol in ("fedavg", "dafkd", "selective-fd", "fedkd", "fediod"):
    private = [mean[protocol, "DP-SGD", level, "utility"] for level in LEVELS]
    found = [mean[protocol, "DP-SGD", level, "membership_auc"] for level in LEVELS]
    undefended = {
        measure: mean[protocol, "none", "inf", measure] for measure in ("utility", "membership_auc")
    }
    assert private == sorted(private), private
    assert private[-1] < sum(alone) / len(alone), private
    assert undefended["utility"] - private[0] > 0.3, private
    assert mean[protocol, "none", "inf", "psnr_gain"] < 4
    if protocol != "fedkd":
        assert [*found, undefended["membership_auc"]] == sorted([*found, undefended["membership_auc"]]), found
    if protocol in ("fedavg", "dafkd"):
        assert undefended["utility"] - private[1] < 0.07, private
    for level in LEVELS:
        if protocol in ("fedavg", "fedkd", "fediod"):
            assert mean[protocol, "noise on what leaves", level, "utility"] < 0.42
private_rows = [r for r in rows if r["level"] != "inf" and r["epsilon_ledger"]]
assert private_rows
assert all(float(r["epsilon_ledger"]) <= float(r["level"]) for r in private_rows)
assert all(int(r["n"]) == 3 for r in rows if r["measure"] == "utility")
