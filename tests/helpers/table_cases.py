"""Small tables, made here: no file of data is needed."""

from __future__ import annotations

import csv
import random


def table_rows(n, *, seed=0):
    """Return n rows: two numbers, a count that is often 0, a category, and a label that some of them explain."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        number, count = draw.gauss(50, 10), draw.choice([0, 0, 1, 2])
        colour = draw.choice(["red", "green", "blue"])
        sick = number + 8 * (colour == "red") + draw.gauss(0, 3) > 52
        rows.append((f"{number:.2f}", f"{draw.gauss(170, 8):.1f}", count, colour, "sick" if sick else "well"))
    return rows


def write_table(path, n=120, **drawn):
    """Write a file of `table:FILE`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["weight", "height", "visits", "colour", "label"])
        writer.writerows(table_rows(n, **drawn))
    return path
