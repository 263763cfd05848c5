"""On MNIST, PLG-MI shows classes that only the model has seen. Run with `-m slow -s` to see the figures."""

from __future__ import annotations

import os
from pathlib import Path

from fdaudit.attacks.model_inversion.gmi import GMI, GMIConfig
from fdaudit.attacks.model_inversion.ideal import IdealConfig, IdealSoft
from fdaudit.attacks.model_inversion.plg_mi import PLGMI, PLGMIConfig

from fdaudit.data.named import read_torchvision
from fdaudit.spec.schema import ModelSpec

from ...helpers.marks import SLOW_ON_DATA
from .inversion_cases import Withheld

pytestmark = SLOW_ON_DATA


def test_plg_mi_shows_more_withheld_classes_than_attacks_without_pseudo_labels() -> None:
    raw = read_torchvision("mnist", Path(os.environ["FDAUDIT_DATA"]), download=False)
    case = Withheld(raw.x.float() / 255, raw.y, (6000, 2000, 10_000), ModelSpec(name="cnn-5-5"), 400)
    attacks = {
        "gmi": GMI(GMIConfig(**GMI.card.profiles["quick"])),
        "ideal-soft": IdealSoft(IdealConfig(**IdealSoft.card.profiles["quick"])),
        "plg-mi": PLGMI(PLGMIConfig(**PLGMI.card.profiles["quick"])),
    }
    found = {name: case.accuracy(attack) for name, attack in attacks.items()}
    print(found)
    assert found["plg-mi"] >= 0.8
    assert found["plg-mi"] >= max(found["gmi"], found["ideal-soft"])
