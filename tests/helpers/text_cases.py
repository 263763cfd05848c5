"""Small tables of texts, made here: no file of data is needed."""

from __future__ import annotations

import csv
import random

TOPICS = (
    "ship harbour sail crew captain tide",
    "goal match team coach league player",
    "bread oven flour sugar kitchen butter",
)
PLAIN = "the a of and in it was on for with as by at this from they had not but one"


def texts(n, *, seed=0):
    """Return n texts with their classes in turn: words of the class's topic among plain ones, and a name of its own."""
    draw = random.Random(seed)
    found = []
    for number in range(n):
        topic = TOPICS[number % len(TOPICS)].split()
        words = draw.choices(topic, k=3) + draw.choices(PLAIN.split(), k=5)
        draw.shuffle(words)
        found.append((" ".join([*words, f"name{number}"]), number % len(TOPICS)))
    return found


def write_texts(path, n=120, **drawn):
    """Write a file of `text:FILE`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(texts(n, **drawn))
    return path


def text_federation(folder):
    """Return the settings of a federation that trains a small transformer on texts of a file in a folder."""
    return {
        "dataset": {"name": f"text:{write_texts(folder / 'a.csv', 150)}", "length": 10},
        "model": {"name": "transformer", "params": {"width": 4}},
    }
