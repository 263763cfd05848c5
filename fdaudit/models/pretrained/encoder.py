"""An encoder of texts with the weights of local files, BERT or DistilBERT of `transformers`, and a head for classes.

Guarantees:
  * all weights but the head's are the files': the generator draws only the head;
  * the features are the last states of [CLS], as `transformers` computes them in evaluation mode;
  * [CLS] and [SEP] have an embedding of their own, so no row of the vocabulary's embedding speaks of them;
  * nothing is downloaded, and no code comes with the files.

It has no dropout: the probabilities in `config.json` are not read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.errors import SpecError
from fdaudit.models.network import Network
from fdaudit.models.pretrained.files import FIELD, Sizes, Weights, found_in, sizes_in
from fdaudit.types import PADDING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PretrainedParams", "located", "pretrained"]

_MASKED = -1e9
_WORDS = "embeddings.word_embeddings.weight"
_POSITIONS = "embeddings.position_embeddings.weight"


class PretrainedParams(Config):
    """The place of a pretrained network's files; their `config.json` fixes its sizes."""

    path: str = Field(min_length=1, max_length=4096)
    """A folder with `config.json`, `vocab.txt` and `model.safetensors`: below the folder of datasets, or absolute."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the three files: `cat config.json vocab.txt model.safetensors | sha256sum`. Default: not checked."""


class _Encoder(nn.Module):
    """Maps token numbers (n, L) to features (n, d): the last state of [CLS], which stands before each text.

    Of the positions only the first L + 2 are kept, which are all that texts of L tokens have.
    """

    def __init__(self, sizes: Sizes, length: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, sizes.width)
        self.marks = nn.Embedding(2, sizes.width)
        self.body = _body(sizes, length + 2)
        self.body.set_input_embeddings(nn.Identity())  # texts are embedded here

    def states(self, x: Tensor) -> Tensor:
        """Return the states (n, L + 2, d) of [CLS], the tokens and [SEP], which follows the last that is no padding."""
        place = torch.arange(x.shape[1] + 2, device=x.device).expand(len(x), -1)
        end = (place[:, 1:-1] * (x != PADDING)).amax(1, keepdim=True) + 1
        start, stop = self.marks(place[:, :2]).split(1, 1)
        tokens = F.pad(self.embedding(x), (0, 0, 1, 1))
        tokens = torch.where((place == 0)[:, :, None], start, tokens)
        tokens = torch.where((place == end)[:, :, None], stop, tokens)
        away = ~(F.pad(x != PADDING, (1, 1)) | (place == 0) | (place == end))
        # A mask of four dimensions is taken as it is. One of two would be looked into, which `vmap` does not allow.
        mask = torch.where(away, _MASKED, 0.0).to(tokens.dtype)[:, None, None]
        # Positions are given for every text, because private training takes gradients text by text.
        answer = self.body(inputs_embeds=tokens, attention_mask=mask, position_ids=place)
        return cast(Tensor, answer.last_hidden_state)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, d)."""
        return self.states(x)[:, 0]


def pretrained(params: PretrainedParams, length: int, classes: int, words: int) -> Network:
    """Return an encoder for texts of L word pieces with a head; on the meta device it has shapes but no weights.

    Raises:
        SpecError: a file is absent or wrong, or belongs to other texts; or the extra `text` is not installed.
    """
    shapes_only = torch.get_default_device().type == "meta"
    weights = None if shapes_only else _checked(params, length, words)
    sizes = sizes_in(params.path) if weights is None else weights.sizes
    encoder = _Encoder(sizes, length, words)
    if weights is not None:
        tensors = weights.tensors(_shapes(sizes))
        table = tensors.pop(_WORDS)
        tensors[_POSITIONS] = tensors[_POSITIONS][: length + 2].clone()
        parameters = {f"body.{name}": tensor for name, tensor in tensors.items()}
        # The rows of the vocabulary in the order of the dataset's words.
        parameters["embedding.weight"] = table[list(weights.pieces.rows)]
        parameters["marks.weight"] = table[list(weights.pieces.marks)]
        encoder.load_state_dict(parameters, assign=True)
    return Network(encoder, nn.Linear(sizes.width, classes))


def located(
    params: PretrainedParams, length: int, words: int | tuple[str, ...], root: Path | None = None
) -> PretrainedParams:
    """Return settings that name the same files from any folder and process: an absolute path, and a digest.

    Args:
        params: the user's settings.
        length: word pieces L of a text.
        words: the dataset's words, or their number if that is all that is known.
        root: the folder of datasets; default: FDAUDIT_DATA.

    Raises:
        SpecError: a file is absent or wrong, or belongs to other texts; or the extra `text` is not installed.
    """
    weights = _checked(params, length, words, root)
    return PretrainedParams(path=str(weights.folder), sha256=weights.digest)


def _body(sizes: Sizes, positions: int) -> PreTrainedModel:
    """Return the layers without a pooler; their weights are not drawn, since files hold them."""
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel
    from transformers.initialization import no_init_weights

    own: dict[str, Any] = {"vocab_size": 1, "pad_token_id": None, "max_position_embeddings": positions}
    own["attn_implementation"] = "eager"  # can be differentiated twice
    with no_init_weights():
        if sizes.model_type == "bert":
            bert = BertConfig(
                hidden_size=sizes.width,
                intermediate_size=sizes.hidden,
                num_hidden_layers=sizes.layers,
                num_attention_heads=sizes.heads,
                type_vocab_size=sizes.segments,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                **own,
            )
            return BertModel(bert, add_pooling_layer=False)
        distil = DistilBertConfig(
            dim=sizes.width,
            hidden_dim=sizes.hidden,
            n_layers=sizes.layers,
            n_heads=sizes.heads,
            dropout=0.0,
            attention_dropout=0.0,
            **own,
        )
        return DistilBertModel(distil)


def _checked(
    params: PretrainedParams, length: int, words: int | tuple[str, ...], root: Path | None = None
) -> Weights:
    """Return the files, if they belong to texts of this length in these words."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        problem = "needs transformers, which is not installed"
        raise SpecError("model.name", "pretrained", problem, "pip install 'fdaudit[text]'") from None
    weights = found_in(params.path, params.sha256, root)
    sizes, own = weights.sizes, weights.pieces.words
    if words != (len(own) if isinstance(words, int) else own):
        problem = "holds a network for other words than the dataset's"
        raise SpecError(FIELD, params.path, problem, "Set `dataset.wordpieces` to the same folder.")
    if length + 2 > (most := sizes.positions):
        problem = f"holds a network for texts of at most {most - 2} word pieces, not {length}"
        raise SpecError(FIELD, params.path, problem, f"Set `dataset.length` to at most {most - 2}.")
    weights.tensors(_shapes(sizes))
    return weights


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shapes that `config.json` implies, by a tensor's name in the file."""
    with torch.device("meta"):
        body = _body(sizes, sizes.positions)
    shapes = {name: tuple(tensor.shape) for name, tensor in body.state_dict().items()}
    shapes[_WORDS] = (sizes.vocabulary, sizes.width)
    return shapes
