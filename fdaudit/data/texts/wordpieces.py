"""Word pieces of BERT: a public vocabulary file, and texts cut into its longest pieces (Devlin et al. 2019).

Guarantees:
  * the vocabulary is a file's, published with a network: no text of a run adds, removes or renumbers a piece;
  * padding is number 0 and the unknown piece 1; the others follow in the file's order, without [CLS] and [SEP], which
    mark the ends of a text and are added inside a network;
  * texts are cut as BERT's uncased tokenizer cuts them, except that a special piece written out in a text, such as
    `[MASK]`, is plain characters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.data.files import resolve_path
from fdaudit.data.texts.words import SPECIAL, Numbering
from fdaudit.errors import DataError
from fdaudit.limits import TABLE_BYTES, read_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "VOCABULARY_FILE",
    "PieceNumbering",
    "Pieces",
    "numbering_of",
    "pieces_of",
    "read_pieces",
]

VOCABULARY_FILE = "vocab.txt"
_PADDING, _UNKNOWN, _MARKS = "[PAD]", "[UNK]", ("[CLS]", "[SEP]")
_GIVE = f"Give the {VOCABULARY_FILE} that belongs to a BERT network, below the folder of datasets."
_MOST = 1_000_000
"""Most pieces of a file."""


@dataclass(frozen=True)
class Pieces:
    """A vocabulary of word pieces.

    Attributes:
        listed: every piece, in the file's order.
    """

    listed: tuple[str, ...]

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Return the place in the file of each of `words`."""
        rows = [self.listed.index(_PADDING), self.listed.index(_UNKNOWN)]
        apart = {*rows, *self.marks}
        for n in range(len(self.listed)):
            if n not in apart:
                rows.append(n)
        return tuple(rows)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Return the pieces that texts are made of, by number."""
        words = list[str](SPECIAL)
        for n in self.rows[len(SPECIAL) :]:
            words.append(self.listed[n])
        return tuple(words)

    @property
    def marks(self) -> tuple[int, int]:
        """Return the places in the file of [CLS] and [SEP]."""
        start, end = map(self.listed.index, _MARKS)
        return start, end


class PieceNumbering(Numbering):
    """Numbers the pieces of texts by a fixed vocabulary.

    Args:
        length: number L of pieces of a record; longer texts are cut, shorter ones padded.
        pieces: the vocabulary.

    Raises:
        DataError: the extra `text` is not installed.
    """

    def __init__(self, length: int, pieces: Pieces) -> None:
        super().__init__(length)
        self._pieces, self._tokenizer = pieces, _tokenizer(pieces)

    @property
    def words(self) -> tuple[str, ...]:
        """Return every piece, by number."""
        return self._pieces.words

    def _numbers(self, text: str) -> list[int]:
        """Return the numbers of a text's first L pieces."""
        numbers: list[int] = self._tokenizer.encode(text).ids
        return numbers[: self.length]


def _tokenizer(pieces: Pieces) -> Tokenizer:
    """Return BERT's uncased tokenizer, without special pieces, which it would find in a text."""
    try:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer
    except ImportError:
        remedy = "pip install 'fdaudit[text]'"
        raise DataError(
            "dataset.wordpieces", None, "needs tokenizers, which is not installed", remedy
        ) from None
    numbers = {piece: number for number, piece in enumerate(pieces.words)}
    tokenizer = Tokenizer(WordPiece(numbers, unk_token=SPECIAL[1]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    return tokenizer


def numbering_of(length: int, wordpieces: str | None, root: Path) -> Numbering:
    """Return a new numbering of texts: by the pieces of a vocabulary file, or of the words that they have themselves.

    Args:
        length: number L of tokens of a record.
        wordpieces: the vocabulary file, or a folder with a `vocab.txt`, as the user wrote it; None without one.
        root: the folder of datasets.

    Raises:
        DataError: a relative path leaves the folder of datasets, or the file is no vocabulary.
    """
    if wordpieces is None:
        return Numbering(length)
    field = "dataset.wordpieces"
    path = resolve_path(wordpieces, root, field)
    if path.is_dir():
        path = resolve_path(str(Path(wordpieces) / VOCABULARY_FILE), root, field)
    return PieceNumbering(length, read_pieces(path, field))


def read_pieces(file: Path, field: str) -> Pieces:
    """Read a vocabulary: UTF-8, one piece a line.

    Args:
        file: the file.
        field: name of the user's field, for the error.

    Raises:
        DataError: the file is absent, too large, no UTF-8, or no vocabulary of BERT.
    """
    try:
        return pieces_of(read_file(file, TABLE_BYTES), file, field)
    except FileNotFoundError:
        raise DataError(field, str(file), "names no file", _GIVE) from None
    except OSError as error:
        raise DataError(field, str(file), f"cannot be read ({error.strerror})", _GIVE) from None


def pieces_of(content: bytes, file: Path, field: str) -> Pieces:
    """Return the vocabulary in a file's bytes; the errors are those of `read_pieces`."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(field, str(file), "cannot be read (it is not UTF-8)", _GIVE) from None
    listed = tuple(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    if problem := _no_vocabulary(listed):
        raise DataError(field, str(file), problem, _GIVE)
    return Pieces(listed)


def _no_vocabulary(listed: tuple[str, ...]) -> str | None:
    """Return why these lines are no vocabulary of BERT, or None."""
    if len(listed) > _MOST:
        return f"has {len(listed):,} lines, more than {_MOST:,}"
    seen = set(listed)
    for name in (_PADDING, _UNKNOWN, *_MARKS):
        if name not in seen:
            return f"has no piece {name}"
    if len(seen) < len(listed):
        (twice, _), *_ = Counter(listed).most_common(1)
        return f"lists {twice[:40]!r} twice"
    if "" in seen or any(name in seen for name in SPECIAL):
        return "lists an empty piece, or <pad> or <unknown>"
    if len(seen) <= len(SPECIAL) + len(_MARKS):
        return "lists no piece of words"
    return None
