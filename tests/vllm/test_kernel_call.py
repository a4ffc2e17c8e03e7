"""`bench.gpu` calls vLLM's Triton kernel as this version of vLLM takes it. Read from its source: no card is needed."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

PEERS = Path(__file__).parents[2] / "bench" / "gpu" / "peers.py"
MODULE = "vllm.v1.attention.ops.triton_unified_attention"


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _given() -> set[str]:
    """The arguments that the bench gives by name."""
    (call,) = [
        node
        for node in ast.walk(_tree(PEERS))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "unified"
    ]
    assert call.args == []
    return {keyword.arg for keyword in call.keywords if keyword.arg is not None}


def test_the_arguments_that_the_bench_gives_are_those_that_the_kernel_takes() -> None:
    found = find_spec(MODULE)
    assert found is not None
    assert found.origin is not None
    (function,) = [
        node
        for node in _tree(Path(found.origin)).body
        if isinstance(node, ast.FunctionDef) and node.name == "unified_attention"
    ]
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    needed = names[: len(function.args.args) - len(function.args.defaults)]
    assert set(needed) <= _given() <= set(names)
    assert f'"{MODULE}"' in PEERS.read_text()
