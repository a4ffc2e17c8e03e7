"""Text becomes ids and comes back, token by token, for bytes and for the tokenizers of real checkpoints' kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from kvledger_engine.tokenizer import BadTokenizer, ByteTokenizer, CheckpointTokenizer, Tokenizer, open_tokenizer

CORPUS = ["the ledger of the pool", "naïve façade, 日本語のブロック", "✓ 🧱 blocks and blocks"] * 4


def streamed(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    stream = tokenizer.stream()
    return "".join([*map(stream.feed, ids), stream.end()])


def byte_level(path: Path) -> tokenizers.Tokenizer:
    """A byte-level BPE with a special token, as Llama 3 and Qwen have."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<begin>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 0)])
    made.save(str(path))
    return made


def byte_fallback(path: Path) -> tokenizers.Tokenizer:
    """Words with byte tokens for what is in none of them, as Llama 2 has."""
    words = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for piece in ("▁", "t", "h", "e", "▁the", "▁t", "he"):
        words[piece] = len(words)
    made = tokenizers.Tokenizer(
        models.BPE(vocab=words, merges=[("▁", "t"), ("h", "e"), ("▁t", "he")], byte_fallback=True, unk_token="<unk>")
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.save(str(path))
    return made


KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback}


@pytest.fixture(params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CheckpointTokenizer, tokenizers.Tokenizer]:
    """Ours and the library's own over one file."""
    path = tmp_path / "tokenizer.json"
    library = KINDS[request.param](path)
    return CheckpointTokenizer(path), library


@given(st.text())
def test_bytes_bring_every_text_back(text: str) -> None:
    text = text.encode(errors="replace").decode()
    ids = ByteTokenizer().encode(text)
    assert ids == list(text.encode())
    assert streamed(ByteTokenizer(), ids) == text


@given(st.lists(st.integers(0, 300)))
def test_any_bytes_become_the_text_that_decoding_them_at_once_gives(ids: list[int]) -> None:
    runs: list[str] = []
    run = bytearray()
    for token in [*ids, 256]:
        if token < 256:
            run.append(token)
        else:
            runs += [run.decode(errors="replace"), f"<{token}>"]
            run.clear()
    assert streamed(ByteTokenizer(), ids) == "".join(runs[:-1])


def test_a_character_comes_with_its_last_byte_and_an_unfinished_one_at_the_end() -> None:
    stream = ByteTokenizer().stream()
    assert [stream.feed(byte) for byte in "é".encode()] == ["", "é"]
    assert (stream.feed("é".encode()[0]), stream.end()) == ("", "\ufffd")


def test_a_lone_surrogate_is_no_crash() -> None:
    assert ByteTokenizer().encode("a\ud800b") == list(b"a?b")


def test_a_checkpoints_tokenizer_encodes_as_the_library_does_special_tokens_included(
    checkpoint: tuple[CheckpointTokenizer, tokenizers.Tokenizer],
) -> None:
    ours, library = checkpoint
    for text in [*CORPUS, "", "the unseen: ж"]:
        ids = ours.encode(text)
        assert ids == library.encode(text).ids
        assert streamed(ours, ids) == library.decode(ids)


def test_any_ids_of_a_byte_level_vocabulary_come_token_by_token_as_they_come_at_once(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    ours = CheckpointTokenizer(tmp_path / "tokenizer.json")

    @given(st.lists(st.integers(0, library.get_vocab_size() + 4), max_size=40))
    def any_ids(ids: list[int]) -> None:
        assert streamed(ours, ids) == library.decode(ids)

    any_ids()


def test_bytes_that_are_no_character_do_not_end_a_stream_and_text_after_them_is_whole(
    checkpoint: tuple[CheckpointTokenizer, tokenizers.Tokenizer],
) -> None:
    ours, library = checkpoint
    after = [token for token in ours.encode("the ledger the") if token > 0]

    @given(st.lists(st.integers(0, library.get_vocab_size() + 4), max_size=20))
    @example([1, 129, 0])
    def any_ids(ids: list[int]) -> None:
        assert streamed(ours, [*ids, *after]).endswith("he ledger the")

    any_ids()


@pytest.mark.parametrize("content", [None, "", "{", '{"model": 1}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadTokenizer, match=str(path)):
        open_tokenizer(str(path))


def test_without_a_file_tokens_are_bytes() -> None:
    assert isinstance(open_tokenizer(""), ByteTokenizer)
