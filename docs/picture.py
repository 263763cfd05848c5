"""Draw the README's picture from a run: a record, the same taken from the wire, and who can learn what.

python docs/picture.py audit/fedavg docs/_static/audit.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from fdaudit.reports.judgement.judgement import read_judged
from fdaudit.reports.run.summary import summarise

from fdaudit.result import Image, Result
from fdaudit.storage.files import load_json

COLOURS = {"leak": "#b3261e", "partial": "#e08a00", "possible": "#f2c94c", "none-seen": "#2e7d32"}
"""Fill by level; other levels are grey."""


def stolen(result: Result) -> tuple[str, Image]:
    """Return the attack and the reconstructed record that is nearest to the truth."""
    found = [
        (cell.attack, image)
        for cell in result.cells
        if cell.goal == "reconstruction" and cell.adversary == "server"
        for target in cell.targets
        for image in target.images or ()
    ]
    return max(found, key=lambda one: one[1].psnr or 0.0)


def main() -> None:
    """Draw the picture of a run."""
    run, out = map(Path, sys.argv[1:])
    result = read_judged(load_json(run / "result.json"))
    attack, image = stolen(result)
    page = summarise(result)
    figure = plt.figure(figsize=(11, 2.9), layout="constrained", dpi=120)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 3.2])
    for axes, name, title in (
        (left, image.truth, "a client's record"),
        (middle, image.guess, f"taken from its gradient\n{attack}, {image.psnr:.0f} dB"),
    ):
        axes.imshow(plt.imread(run / str(name)), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    rows = [[entry.words for entry in row.entries] for row in page.matrix]
    fills = [[COLOURS.get(entry.level, "#9aa0a6") for entry in row.entries] for row in page.matrix]
    right.set_axis_off()
    right.set_title("who can learn what", fontsize=10)
    table = right.table(
        rows,
        cellColours=fills,
        rowLabels=[row.adversary for row in page.matrix],
        colLabels=[goal.replace("-", " ") for goal in page.goals],
        cellLoc="center",
        bbox=(0.0, 0.0, 1.0, 1.0),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("white")
        if row and column >= 0:
            cell.get_text().set_color("black" if fills[row - 1][column] == "#f2c94c" else "white")
    figure.savefig(out)


if __name__ == "__main__":
    main()
