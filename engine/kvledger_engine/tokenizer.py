"""Text to token ids and back, in the HTTP process. The core never sees text, and nothing here sees a tensor.

Text of a sequence comes token by token: each token brings what is certain by then, which may be nothing.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers.decoders import DecodeStream

from kvledger_engine.errors import EngineError

ASCII, BYTES = 128, 256
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_TOKENIZER_LOST_ITS_PLACE = "Invalid prefix"
"""What the library says when bytes that never make a character change the text before them (tokenizers 0.23)."""


class BadTokenizer(EngineError):
    """A `tokenizer.json` that cannot be read; the message names the file."""


class Detokenizer(Protocol):
    """The text of one sequence as it grows."""

    def feed(self, token: int) -> str:
        """What is certain of the text once this token has come, and was not handed out before; may be empty."""

    def end(self) -> str:
        """The rest: a character that stays incomplete."""


class Tokenizer(Protocol):
    """One model's vocabulary."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a prompt, with the special tokens the model wants around it unless the text has them already."""

    def name(self, token: int) -> str:
        """What one token is called where tokens are listed; a token that is no whole text has a name of its own."""

    def raw(self, token: int) -> bytes | None:
        """The bytes of one token's text; None where they are not known."""

    def stream(self) -> Detokenizer:
        """A detokenizer for one sequence."""


class ByteTokenizer:
    """A token is a byte of UTF-8. Ids from 256 on are nobody's text and are shown by their number."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See `Tokenizer.encode`. A lone surrogate becomes a question mark: JSON can carry one, UTF-8 cannot."""
        return list(text.encode(errors="replace"))

    def name(self, token: int) -> str:
        """See `Tokenizer.name`: a part of a character is called as OpenAI's API calls it."""
        if token >= BYTES:
            return f"<{token}>"
        return chr(token) if token < ASCII else f"bytes:\\x{token:02x}"

    def raw(self, token: int) -> bytes | None:
        """See `Tokenizer.raw`."""
        return bytes((token,)) if token < BYTES else None

    def stream(self) -> Detokenizer:
        """See `Tokenizer.stream`."""
        return _ByteStream()


class _ByteStream:
    """Bytes that end a character give the character; bytes that never will give U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        if token < BYTES:
            return self._decoder.decode(bytes((token,)))
        return f"{self.end()}<{token}>"

    def end(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


class CheckpointTokenizer:
    """A checkpoint's own `tokenizer.json`. Raises `BadTokenizer`."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no type of its own
            raise BadTokenizer(f"{path}: {error}; use the tokenizer.json that came with the checkpoint") from error

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See `Tokenizer.encode`."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def name(self, token: int) -> str:
        """See `Tokenizer.name`: the vocabulary's own where the token is no whole text."""
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        if text and _NO_CHARACTER not in text:
            return str(text)
        return self._tokenizer.id_to_token(token) or f"<{token}>"

    def raw(self, token: int) -> bytes | None:
        """See `Tokenizer.raw`."""
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        return None if _NO_CHARACTER in text else text.encode()

    def stream(self) -> Detokenizer:
        """See `Tokenizer.stream`. Special tokens are no text."""
        return _LibraryStream(self._tokenizer)


class _LibraryStream:
    """The library holds back what the next token may still change."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._begin()

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        try:
            return self._step(token)
        except Exception as error:
            if not str(error).startswith(_TOKENIZER_LOST_ITS_PLACE):
                raise
        rest = self.end()
        self._begin()
        return rest + self._step(token)

    def _step(self, token: int) -> str:
        text = self._stream.step(self._tokenizer, token)
        self._held = [] if text is not None else [*self._held, token]
        return text or ""

    def end(self) -> str:
        return self._tokenizer.decode(self._held) if self._held else ""


def open_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`; bytes where there is none. Raises `BadTokenizer`."""
    return CheckpointTokenizer(Path(path)) if path else ByteTokenizer()
