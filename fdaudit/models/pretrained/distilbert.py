"""DistilBERT (Sanh et al. 2019) with the weights of local files, fine-tuned as a classifier of texts.

Guarantees:
  * all weights but the head's are the files': the generator draws only the head;
  * the features are the last states of [CLS], as the published implementation computes them in evaluation mode;
  * [CLS] and [SEP] have an embedding of their own, so no row of the vocabulary's embedding speaks of them.

It has no dropout: `dropout` and `attention_dropout` of `config.json` are not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.errors import SpecError
from fdaudit.models.network import Network
from fdaudit.models.pretrained.files import FIELD, Sizes, Weights, found_in, sizes_in
from fdaudit.types import PADDING

__all__ = ["DistilbertParams", "distilbert", "located"]

_MASKED = -1e9
_EPSILON = 1e-12
"""Added to the variance in every LayerNorm."""


class DistilbertParams(Config):
    """The place of a pretrained network's files; their `config.json` fixes its sizes."""

    path: str = Field(min_length=1, max_length=4096)
    """A folder with `config.json`, `vocab.txt` and `model.safetensors`: below the folder of datasets, or absolute."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the three files: `cat config.json vocab.txt model.safetensors | sha256sum`. Default: not checked."""


class _Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.n_heads
        self.q_lin, self.k_lin = nn.Linear(sizes.dim, sizes.dim), nn.Linear(sizes.dim, sizes.dim)
        self.v_lin, self.out_lin = nn.Linear(sizes.dim, sizes.dim), nn.Linear(sizes.dim, sizes.dim)

    def forward(self, h: Tensor, away: Tensor) -> Tensor:
        """Return states (n, T, d). No token attends to one that is `away` (n, T)."""
        q, k, v = (
            lin(h).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for lin in (self.q_lin, self.k_lin, self.v_lin)
        )
        score = (q @ k.transpose(2, 3)) / q.shape[3] ** 0.5
        attended = score.masked_fill(away[:, None, None], _MASKED).softmax(3) @ v
        return cast(Tensor, self.out_lin(attended.transpose(1, 2).flatten(2)))


class _Wide(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(sizes.dim, sizes.hidden_dim), nn.Linear(sizes.hidden_dim, sizes.dim)

    def forward(self, h: Tensor) -> Tensor:
        """Return states (n, T, d)."""
        return cast(Tensor, self.lin2(F.gelu(self.lin1(h))))


class _Block(nn.Module):
    """Self-attention and a wide network, each added to its input before a LayerNorm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention, self.ffn = _Attention(sizes), _Wide(sizes)
        self.sa_layer_norm = nn.LayerNorm(sizes.dim, eps=_EPSILON)
        self.output_layer_norm = nn.LayerNorm(sizes.dim, eps=_EPSILON)

    def forward(self, h: Tensor, away: Tensor) -> Tensor:
        """Return states (n, T, d). No token attends to one that is `away` (n, T)."""
        h = self.sa_layer_norm(h + self.attention(h, away))
        return cast(Tensor, self.output_layer_norm(h + self.ffn(h)))


class _Encoder(nn.Module):
    """Maps token numbers (n, L) to features (n, d): the last state of [CLS], which stands before each text.

    Of the positions only the first L + 2 are kept, which are all that texts of L tokens have.
    """

    def __init__(self, sizes: Sizes, length: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, sizes.dim)
        self.marks = nn.Embedding(2, sizes.dim)
        self.position = nn.Embedding(length + 2, sizes.dim)
        self.norm = nn.LayerNorm(sizes.dim, eps=_EPSILON)
        self.layer = nn.ModuleList(_Block(sizes) for _ in range(sizes.n_layers))

    def states(self, x: Tensor) -> Tensor:
        """Return the states (n, L + 2, d) of [CLS], the tokens and [SEP], which follows the last that is no padding."""
        place = torch.arange(x.shape[1] + 2, device=x.device).expand(len(x), -1)
        end = (place[:, 1:-1] * (x != PADDING)).amax(1, keepdim=True) + 1
        start, stop = self.marks(place[:, :2]).split(1, 1)
        tokens = F.pad(self.embedding(x), (0, 0, 1, 1))
        tokens = torch.where((place == 0)[:, :, None], start, tokens)
        tokens = torch.where((place == end)[:, :, None], stop, tokens)
        away = ~(F.pad(x != PADDING, (1, 1)) | (place == 0) | (place == end))
        h = self.norm(tokens + self.position(place))
        for block in self.layer:
            h = block(h, away)
        return cast(Tensor, h)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, d)."""
        return self.states(x)[:, 0]


def distilbert(params: DistilbertParams, length: int, classes: int, words: int) -> Network:
    """Return a DistilBERT for texts of L word pieces; on the meta device it has shapes but no weights.

    Raises:
        SpecError: a file is absent or wrong, or belongs to other texts.
    """
    shapes_only = torch.get_default_device().type == "meta"
    weights = None if shapes_only else _checked(params, length, words)
    sizes = sizes_in(params.path) if weights is None else weights.sizes
    with torch.device("meta"):
        encoder = _Encoder(sizes, length, words)
    if weights is not None:
        encoder.load_state_dict(_placed(weights, length), assign=True)
    return Network(encoder, nn.Linear(sizes.dim, classes))


def located(
    params: DistilbertParams, length: int, words: int | tuple[str, ...], root: Path | None = None
) -> DistilbertParams:
    """Return settings that name the same files from any folder and process: an absolute path, and a digest.

    Args:
        params: the user's settings.
        length: word pieces L of a text.
        words: the dataset's words, or their number if that is all that is known.
        root: the folder of datasets; default: FDAUDIT_DATA.

    Raises:
        SpecError: a file is absent or wrong, or belongs to other texts.
    """
    weights = _checked(params, length, words, root)
    return DistilbertParams(path=str(weights.folder), sha256=weights.digest)


def _checked(
    params: DistilbertParams, length: int, words: int | tuple[str, ...], root: Path | None = None
) -> Weights:
    """Return the files, if they belong to texts of this length in these words."""
    weights = found_in(params.path, params.sha256, root)
    own = weights.pieces.words
    if words != (len(own) if isinstance(words, int) else own):
        problem = "holds a network for other words than the dataset's"
        raise SpecError(FIELD, params.path, problem, "Set `dataset.wordpieces` to the same folder.")
    if length + 2 > (most := weights.sizes.max_position_embeddings):
        problem = f"holds a network for texts of at most {most - 2} word pieces, not {length}"
        raise SpecError(FIELD, params.path, problem, f"Set `dataset.length` to at most {most - 2}.")
    return weights


def _placed(weights: Weights, length: int) -> dict[str, Tensor]:
    """Return the encoder's parameters by name, the rows of the vocabulary in the order of the dataset's words."""
    read = dict(weights.tensors)
    table = read.pop("embeddings.word_embeddings.weight")
    position = read.pop("embeddings.position_embeddings.weight")
    found = {
        "embedding.weight": table[list(weights.pieces.rows)],
        "marks.weight": table[list(weights.pieces.marks)],
        "position.weight": position[: length + 2].clone(),
        "norm.weight": read.pop("embeddings.LayerNorm.weight"),
        "norm.bias": read.pop("embeddings.LayerNorm.bias"),
    }
    return found | {name.removeprefix("transformer."): tensor for name, tensor in read.items()}
