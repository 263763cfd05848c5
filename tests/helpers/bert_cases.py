"""A tiny DistilBERT in the layout of Hugging Face: a vocabulary, sizes, and weights by seed; no file is downloaded."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

from .text_cases import PLAIN, TOPICS

SIZES = {
    "model_type": "distilbert",
    "activation": "gelu",
    "dim": 16,
    "hidden_dim": 32,
    "n_layers": 2,
    "n_heads": 2,
    "max_position_embeddings": 20,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "sinusoidal_pos_embds": False,
}
PIECES = (
    *("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *TOPICS[0].split(),
    *TOPICS[1].split(),
    *TOPICS[2].split(),
    *PLAIN.split(),
    *("name", "##1", "##2", "##3", "##name", "play", "##ed", "##s", "'", "!", ",", "[", "]", "mask"),
    *("e", "##t", "##e", "u", "##n", "##aff", "##able", "un", "東", "京", "$", "-"),
)


def shapes(sizes=SIZES, pieces=PIECES):
    """Return the tensors' shapes, written out."""
    d, wide = sizes["dim"], sizes["hidden_dim"]
    found = {
        "embeddings.word_embeddings.weight": (len(pieces), d),
        "embeddings.position_embeddings.weight": (sizes["max_position_embeddings"], d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for n in range(sizes["n_layers"]):
        for name, shape in {
            **{f"attention.{lin}_lin": (d, d) for lin in ("q", "k", "v", "out")},
            "sa_layer_norm": (d,),
            "ffn.lin1": (wide, d),
            "ffn.lin2": (d, wide),
            "output_layer_norm": (d,),
        }.items():
            found[f"transformer.layer.{n}.{name}.weight"] = shape
            found[f"transformer.layer.{n}.{name}.bias"] = shape[:1]
    return found


def weights(sizes=SIZES, pieces=PIECES):
    """Return weights by a rule that any library can follow: far decimals of sines, as good as random."""
    found = {}
    for number, (name, shape) in enumerate(shapes(sizes, pieces).items()):
        place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
        drawn = (torch.sin(12.9898 * place + 78.233 * (number + 1)) * 43758.5453).frac().abs() - 0.5
        scale, shift = (0.2, 1.0) if "norm.weight" in name.lower() else (1.0, 0.0)
        found[name] = (shift + scale * drawn).reshape(shape).float()
    return found


def write_bert(folder, *, prefix="distilbert.", sizes=SIZES, pieces=PIECES, tensors=None):
    """Write the three files, with a head of another task among the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**sizes, "vocab_size": len(pieces)}))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    stored = {prefix + name: t for name, t in (tensors or weights(sizes, pieces)).items()}
    save_file({**stored, "vocab_projector.bias": torch.zeros(3)}, folder / "model.safetensors")
    return folder
