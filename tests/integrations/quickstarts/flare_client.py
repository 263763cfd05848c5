"""A client of NVIDIA FLARE: flare_client.py vision|tabular FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch

from fdaudit.integrations.nvflare import hold_dataset
from quickstarts import tabular, vision

RECORDS, BATCH, SITES = 8, 4, 2


def main(which: str, folder: str) -> None:
    """Train on the site's records while the job runs."""
    flare.init()
    name = flare.get_site_name()
    site = int(name.removeprefix("site-")) - 1
    if which == "vision":
        dataset = vision.partition(site, RECORDS)
    else:
        dataset = list(zip(*tabular.flowers(site, SITES), strict=True))
    hold_dataset(Path(folder) / "TRUTH", name, dataset)
    while flare.is_running():
        received = flare.receive()
        if which == "vision":
            state = {n: torch.as_tensor(v) for n, v in received.params.items()}
            sent = {n: t.clone() for n, t in vision.train(state, dataset, BATCH).state_dict().items()}
        else:
            start = [np.asarray(received.params[name]) for name in ("coef", "intercept")]
            sent = dict(zip(("coef", "intercept"), tabular.fitted(start, site, SITES), strict=True))
        used = {"fdaudit.records": list(range(len(dataset)))}
        flare.send(flare.FLModel(params=sent, meta={"NUM_STEPS_CURRENT_ROUND": 2, **used}))


if __name__ == "__main__":
    main(*sys.argv[1:])
