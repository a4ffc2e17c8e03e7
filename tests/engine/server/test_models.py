"""Models behind the real command: a checkpoint's text over HTTP, and steps that fail while the engine goes on."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.model.oracle import Oracle
from tests.engine.server.client import Client, first_event, talk
from tests.engine.server.process import command, engine, environment, eventually
from tests.engine.server.test_tokenizer import byte_level

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

EMBEDDED = ("--model", "embedded", "--blocks", "1024", "--max-model-len", "8192", "--max-num-batched-tokens", "2048")
TEXT = "naïve 日本語 blocks"
SPARE_BYTES = 24 << 20


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Oracle, Path]:
    """A tiny Qwen3 as users have them on disk, tokenizer included, and the same model in `transformers`."""
    oracle = Oracle("qwen3", monkeypatch, vocab_size=400, head_dim=16)
    directory = oracle.save(tmp_path / "tiny-qwen3")
    byte_level(directory / "tokenizer.json")
    return oracle, directory


def greedy(oracle: Oracle, tokens: list[int], count: int) -> list[int]:
    """What `transformers` says comes next."""
    known = list(tokens)
    for _ in range(count):
        known.append(int(oracle.logits(known)[-1].argmax()))
    return known[len(tokens) :]


def test_a_checkpoints_text_over_http_is_what_transformers_says(
    checkpoint: tuple[Oracle, Path], directory: Path
) -> None:
    oracle, path = checkpoint
    library = byte_level(path / "tokenizer.json")
    wanted = library.decode(greedy(oracle, library.encode(TEXT).ids, 40))

    async def conversation(client: Client) -> None:
        body: dict[str, Any] = {"prompt": TEXT, "max_tokens": 40, "temperature": 0}
        whole, streamed = await client.complete(**body), await client.stream(**body)
        assert whole.texts == streamed.texts == [wanted]
        assert whole.document["model"] == "tiny-qwen3"
        assert whole.document["usage"]["prompt_tokens"] == len(library.encode(TEXT).ids)

    with engine(directory, "--model", str(path), "--dtype", "float64") as process:
        talk(process.url, conversation)


def test_a_checkpoints_end_token_ends_a_request_unless_it_is_ignored(
    checkpoint: tuple[Oracle, Path], directory: Path
) -> None:
    oracle, path = checkpoint
    library = byte_level(path / "tokenizer.json")
    drawn = greedy(oracle, library.encode(TEXT).ids, 20)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [399, drawn[7]]}))

    async def conversation(client: Client) -> None:
        body: dict[str, Any] = {"prompt": TEXT, "max_tokens": 20, "temperature": 0}
        ended, ignored = await client.complete(**body), await client.complete(**body, ignore_eos=True)
        assert ended.document["choices"][0]["finish_reason"] == "stop"
        assert ended.document["usage"]["completion_tokens"] == drawn.index(drawn[7]) + 1
        assert ignored.document["usage"]["completion_tokens"] == 20

    with engine(directory, "--model", str(path), "--dtype", "float64") as process:
        talk(process.url, conversation)


def test_logits_that_are_no_numbers_end_their_requests_as_engine_error_and_the_engine_goes_on(
    checkpoint: tuple[Oracle, Path], directory: Path
) -> None:
    oracle, path = checkpoint
    # One token's embedding is broken: whoever has it in the prompt cannot be answered, everybody else can.
    with torch.no_grad():
        oracle.model.model.embed_tokens.weight[77] = torch.nan
    oracle.save(path)

    async def conversation(client: Client) -> None:
        broken = await client.complete(prompt=[5, 77, 6], max_tokens=4, temperature=0)
        assert (broken.status, broken.error["code"]) == (503, "engine_error")
        sound = await client.complete(prompt=[5, 78, 6], max_tokens=4, temperature=0)
        assert (sound.status, sound.document["usage"]["completion_tokens"]) == (200, 4)

    with engine(directory, "--model", str(path), "--dtype", "float64") as process:
        talk(process.url, conversation)
        assert process.ended("engine_error") == 1
        assert process.holds_nothing()
        code, log = process.stop()
    assert code == 0
    assert "NonFiniteLogits" in log
    assert "[5, 77, 6]" not in log


def test_a_step_without_memory_ends_its_requests_as_out_of_memory_and_the_engine_goes_on(directory: Path) -> None:
    async def conversation(client: Client) -> None:
        warm = await client.complete(prompt=[1] * 64, max_tokens=4, temperature=0)
        assert warm.status == 200
        async with client.streaming(prompt=[3] * 64, max_tokens=4000, temperature=0) as response:
            await first_event(response)
            with memory_limit(process.core.pid):
                large = await client.complete(prompt=[2] * 8000, max_tokens=4, temperature=0)
                assert (large.status, large.error["code"]) == (503, "out_of_memory")
        again = await client.complete(prompt=[2] * 8000, max_tokens=4, temperature=0)
        assert (again.status, again.document["usage"]["completion_tokens"]) == (200, 4)

    with engine(directory, *EMBEDDED) as process:
        talk(process.url, conversation)
        # The stream was in the step too, or had been dropped by then.
        assert process.ended("out_of_memory") >= 1
        eventually(process.holds_nothing, "everything is given back")
        assert process.stop()[0] == 0


def test_an_engine_that_forgets_says_so_in_its_first_line_and_on_the_ledger(directory: Path) -> None:
    forgetful = ("--kv-eviction", "sink-window", "--kv-window-tokens", "64", "--kv-sink-blocks", "1")
    with engine(directory, *EMBEDDED, *forgetful) as process:
        (said,) = process.ready["declared"]
        assert "answers change" in said
        assert process.sample().head.limits.kv_eviction == "sink-window"
        assert process.stop()[0] == 0


NORM = "model.norm.weight"
CANNOT_BE_HAD: list[tuple[list[str], str]] = [
    (["--model", "{empty}"], "config.json"),
    (["--model", "nowhere"], "nowhere"),
    (["--model", "embedded", "--max-model-len", "40000"], "--max-model-len=40000: the model has 32,768 positions"),
    (["--model", "embedded", "--device", "cuda"], "no accelerator"),
    (["--model", "embedded", "--blocks", "60000000"], "983,040,000,000 bytes"),
    (["--model", "{without_a_tensor}"], f"{NORM} (1 tensors) missing"),
    (["--model", "{wrong_shape}"], f"{NORM} has shape (47,): config.json makes it (48,)"),
    (["--model", "{unknown_architecture}"], "model_type='mamba2': this engine computes llama, mistral, qwen2, qwen3"),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories that are no checkpoint, by what is wrong with them; sound ones but for that."""
    with pytest.MonkeyPatch.context() as patch:
        oracle = Oracle("qwen3", patch, vocab_size=400, head_dim=16)
        kinds = ("without_a_tensor", "wrong_shape", "unknown_architecture")
        made = {kind: oracle.save(tmp_path_factory.mktemp("broken") / kind) for kind in kinds}
    for path in made.values():
        byte_level(path / "tokenizer.json")
    _change_tensors(made["without_a_tensor"], lambda tensors: tensors.pop(NORM))
    _change_tensors(made["wrong_shape"], lambda tensors: tensors.update({NORM: torch.zeros(47)}))
    config = made["unknown_architecture"] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "mamba2"}))
    return made | {"empty": tmp_path_factory.mktemp("empty")}


def _change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize(("flags", "said"), CANNOT_BE_HAD)
def test_a_model_that_cannot_be_had_is_named_at_the_start_and_leaves_no_ledger(
    directory: Path, broken: dict[str, Path], flags: list[str], said: str
) -> None:
    flags = [flag.format(**broken) for flag in flags]
    done = subprocess.run(
        command("--directory", str(directory), "--port", "0", *flags),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [path.name for path in directory.glob("*.kvledger")] == []


@contextmanager
def memory_limit(pid: int) -> Iterator[None]:
    """Let a process have hardly more address space than it has; a large tensor cannot be had then."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)
