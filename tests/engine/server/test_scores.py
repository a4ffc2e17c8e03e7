"""What the official client asks of a real model: nucleus sampling, log probabilities, a checkpoint's own template."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.model.oracle import Oracle
from tests.engine.server.conftest import in_memory
from tests.engine.server.openais import client, talk_async
from tests.engine.server.process import EngineProcess, engine
from tests.engine.server.test_tokenizer import byte_level

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

EMBEDDED = ("--model", "embedded", "--blocks", "256", "--max-model-len", "4096", "--max-num-batched-tokens", "512")


@pytest.fixture(scope="module")
def embedded() -> Iterator[EngineProcess]:
    """An engine over the embedded model."""
    with in_memory() as path, engine(Path(path), *EMBEDDED) as process:
        yield process
        process.assert_nothing_lost()
        assert process.stop() == (0, "")


def test_a_nucleus_of_nothing_is_the_likeliest_token_and_a_seed_repeats_itself(embedded: EngineProcess) -> None:
    with client(embedded.url) as asking:

        def text(**more: Any) -> str:
            done = asking.completions.create(model="embedded", prompt="kv", max_tokens=30, **more)
            return str(done.choices[0].text)

        assert text(temperature=1, top_p=0) == text(temperature=0)
        assert text(seed=3, top_p=0.5) == text(seed=3, top_p=0.5) != text(seed=3)


def test_log_probabilities_come_with_completions_whole_and_streamed(embedded: EngineProcess) -> None:
    body: dict[str, Any] = {"model": "embedded", "prompt": "kv", "max_tokens": 12, "temperature": 0, "logprobs": 5}
    with client(embedded.url) as asking:
        done = asking.completions.create(**body)
        pieces = [chunk.choices[0].logprobs for chunk in asking.completions.create(**body, stream=True)]
    scores = done.choices[0].logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert scores.token_logprobs is not None
    assert scores.top_logprobs is not None
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.top_logprobs) == 12
    for token, value, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True):
        # A greedy draw is the likeliest token.
        assert next(iter(top)) == token
        assert len(top) == 5
        assert top[token] == value == max(top.values())
        assert 0 < sum(map(math.exp, top.values())) <= 1.0001
    assert [piece.tokens for piece in pieces if piece is not None] == [[token] for token in scores.tokens]


def test_log_probabilities_come_with_chats_for_whoever_asks_and_for_nobody_else(embedded: EngineProcess) -> None:
    async def conversation(asking: openai.AsyncOpenAI) -> None:
        messages: Any = [{"role": "user", "content": "hi"}]
        body: dict[str, Any] = {"model": "embedded", "messages": messages, "max_tokens": 8, "temperature": 0}
        with_two, without, bare = await asyncio.gather(
            asking.chat.completions.create(**body, logprobs=True, top_logprobs=2, n=1),
            asking.chat.completions.create(**body),
            asking.chat.completions.create(**body, logprobs=True),
        )
        assert without.choices[0].logprobs is None
        entries, alone = with_two.choices[0].logprobs.content, bare.choices[0].logprobs.content
        assert [len(entry.top_logprobs) for entry in entries] == [2] * 8
        assert [len(entry.top_logprobs) for entry in alone] == [0] * 8
        assert [entry.token for entry in entries] == [entry.token for entry in alone]
        raw = bytes(byte for entry in entries for byte in entry.bytes or [])
        assert raw.decode(errors="replace") == with_two.choices[0].message.content or any(
            entry.bytes is None for entry in entries
        )

    talk_async(embedded.url, conversation)


def test_a_checkpoints_chat_goes_through_its_own_template(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Oracle("qwen3", monkeypatch, vocab_size=400, head_dim=16).save(tmp_path / "tiny-qwen3")
    library = byte_level(path / "tokenizer.json")
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with engine(directory, "--model", str(path)) as process, client(process.url) as asking:
        said = asking.chat.completions.create(
            model="tiny-qwen3", messages=[{"role": "user", "content": "naïve"}], max_tokens=9, temperature=0
        )
        plain = asking.completions.create(
            model="tiny-qwen3",
            prompt=library.encode("<user>naïve>", add_special_tokens=False).ids,
            max_tokens=9,
            temperature=0,
        )
    assert said.choices[0].message.content == plain.choices[0].text
