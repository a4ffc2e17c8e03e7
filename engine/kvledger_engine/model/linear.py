"""Matrix products: a weight in the order its device multiplies fastest, and the product with it.

oneDNN multiplies few rows by a weight that lies in its own blocked order up to several times as fast, on two threads
above all, as MKL does by one that lies row by row. Small ones gain nothing: what a call costs is more than the product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear as plain

LEAST_ELEMENTS = 1 << 18
"""Elements of the smallest weight that is worth packing."""
_ROWS = 32  # rows that the order is chosen for; it serves any number of them


def packed(weight: Tensor) -> Tensor:
    """`weight` [out, in] for `linear`: in oneDNN's order where that pays, else as it is. It has the same `nbytes`."""
    if not _pays(weight):
        return weight
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return ordered


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows` [t, in] times the transpose of a weight that `packed` returned, plus `bias`: [t, out]."""
    if weight.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return product
    return plain(rows, weight, bias)


def _pays(weight: Tensor) -> bool:
    large = weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.numel() >= LEAST_ELEMENTS
    return large and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
