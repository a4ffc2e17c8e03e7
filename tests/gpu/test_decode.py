"""The compiled decode kernel over the whole product of shapes that the interpreter meets in pairs."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kvledger_engine.attention.plan import HeadLayout
from tests.engine.kernels.paged import BOUNDS, STORED, paged

pytestmark = pytest.mark.gpu
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 255, 1000, 2048, 4096, 4097)
GRID = tuple(product((64, 96, 128), (1, 4, 8), (16, 32), (0, 1000), STORED))


@pytest.mark.parametrize("asked", BOUNDS)
@pytest.mark.parametrize(("head_dim", "group", "block_size", "window", "name"), GRID)
def test_the_compiled_kernel_sees_what_plain_torch_sees(
    head_dim: int, group: int, block_size: int, window: int, name: str, asked: torch.dtype
) -> None:
    from kvledger_engine.kernels.backend import TritonBackend  # compiles: only where there is a card

    device = torch.device("cuda")
    if name == "fp8" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this card computes in no fp8; the engine refuses it there")
    case = paged(
        LENGTHS,
        HeadLayout(2 * group, 2, head_dim),
        block_size=block_size,
        stored=STORED[name],
        device=device,
        window_tokens=window,
        asked=asked,
    )
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    backend = TritonBackend(case.layout, device, STORED[name], multiprocessors=multiprocessors)
    seen = backend.attend(case.query, case.cells, backend.plan(case.step, 0))
    assert float((seen.float() - case.oracle()).abs().max()) <= BOUNDS[case.query.dtype]
