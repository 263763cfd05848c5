"""Word pieces of BERT: a public vocabulary file, and texts cut into its longest pieces (Devlin et al. 2019).

Guarantees:
  * the vocabulary is a file's, published with a network: no text of a run adds, removes or renumbers a piece;
  * padding is number 0 and the unknown piece 1; the others follow in the file's order, without [CLS] and [SEP], which
    mark the ends of a text and are added inside a network;
  * texts are cut as BERT's uncased tokenizer cuts them, except that a special piece written out in a text, such as
    `[MASK]`, is plain characters.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fdaudit.data.files import resolve_path
from fdaudit.data.texts.words import SPECIAL, Numbering
from fdaudit.errors import DataError
from fdaudit.limits import TABLE_BYTES, read_file
from fdaudit.types import UNKNOWN

__all__ = [
    "VOCABULARY_FILE",
    "PieceNumbering",
    "Pieces",
    "basic_words",
    "find_pieces",
    "pieces_of",
    "read_pieces",
]

VOCABULARY_FILE = "vocab.txt"
_PADDING, _UNKNOWN, _MARKS = "[PAD]", "[UNK]", ("[CLS]", "[SEP]")
_GIVE = f"Give the {VOCABULARY_FILE} that belongs to a BERT network, below the folder of datasets."
_LONGEST = 100
"""A word of more characters is one unknown piece."""
_MOST = 1_000_000
"""Most pieces of a file."""
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_IDEOGRAPHS = (
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F)),
)
"""First and last of each block of Chinese characters, which are words of one character."""


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
        first = [self.listed.index(name) for name in (_PADDING, _UNKNOWN)]
        apart = {*first, *self.marks}
        return (*first, *(n for n in range(len(self.listed)) if n not in apart))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Return the pieces that texts are made of, by number."""
        return (*SPECIAL, *(self.listed[n] for n in self.rows[len(SPECIAL) :]))

    @property
    def marks(self) -> tuple[int, int]:
        """Return the places in the file of [CLS] and [SEP]."""
        start, end = (self.listed.index(name) for name in _MARKS)
        return start, end


class PieceNumbering(Numbering):
    """Numbers the pieces of texts by a fixed vocabulary.

    Args:
        length: number L of pieces of a record; longer texts are cut, shorter ones padded.
        pieces: the vocabulary.
    """

    def __init__(self, length: int, pieces: Pieces) -> None:
        super().__init__(length)
        self._pieces = pieces
        self._number = {piece: n for n, piece in enumerate(pieces.words)}
        self._known: dict[str, list[int]] = {}

    @property
    def words(self) -> tuple[str, ...]:
        """Return every piece, by number."""
        return self._pieces.words

    def _numbers(self, text: str) -> list[int]:
        """Return the numbers of a text's first L pieces."""
        found: list[int] = []
        for word in basic_words(text):
            if word not in self._known:
                self._known[word] = self._cut(word)
            found += self._known[word]
            if len(found) >= self.length:
                break
        return found[: self.length]

    def _cut(self, word: str) -> list[int]:
        """Return the numbers of a word's pieces, the longest first; the unknown piece if they do not cover it."""
        if len(word) > _LONGEST:
            return [UNKNOWN]
        found: list[int] = []
        start = 0
        while start < len(word):
            end, mark = len(word), "##" if start else ""
            while end > start and (mark + word[start:end]) not in self._number:
                end -= 1
            if end == start:
                return [UNKNOWN]
            found.append(self._number[mark + word[start:end]])
            start = end
        return found


class _Table(dict[int, str]):
    """Maps each character to what stands for it: itself, a space, itself as a word of its own, or nothing."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _shown(code)
        return found


def _shown(code: int) -> str:
    char = chr(code)
    kind = unicodedata.category(char)
    if char in " \t\n\r" or kind == "Zs":
        return " "
    if code in (0, 0xFFFD) or kind.startswith("C") or kind == "Mn":
        return ""
    own_word = char in _PUNCTUATION or kind.startswith("P") or any(a <= code <= z for a, z in _IDEOGRAPHS)
    return f" {char} " if own_word else char


_TABLE = _Table()


def basic_words(text: str) -> list[str]:
    """Return the words of a text as BERT's uncased tokenizer splits it, before they are cut into pieces.

    It is lower-cased and loses accents and control characters. Each punctuation mark and each Chinese character is a
    word of its own.
    """
    return unicodedata.normalize("NFD", text.lower()).translate(_TABLE).split()


def find_pieces(text: str, root: Path, field: str) -> Path:
    """Return the vocabulary file that a path names: a file, or the `vocab.txt` of a folder.

    Args:
        text: the path, as the user wrote it.
        root: the folder of datasets.
        field: name of the user's field, for the error.

    Raises:
        DataError: a relative path leaves the folder of datasets.
    """
    found = resolve_path(text, root, field)
    return resolve_path(str(Path(text) / VOCABULARY_FILE), root, field) if found.is_dir() else found


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
    if missing := [name for name in (_PADDING, _UNKNOWN, *_MARKS) if name not in seen]:
        return f"has no piece {missing[0]}"
    if len(seen) < len(listed):
        (twice, _), *_ = Counter(listed).most_common(1)
        return f"lists {twice[:40]!r} twice"
    if "" in seen or any(name in seen for name in SPECIAL):
        return "lists an empty piece, or <pad> or <unknown>"
    return None if len(seen) > len(SPECIAL) + len(_MARKS) else "lists no piece of words"
