"""Where the control plane loops in Python, and over what: never over the sequences that run or wait.

`test_vectorised` counts turns in steps that run; this page lists every loop there is, so that a new one is noticed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "engine"
SET_UP, KINDS, GROUPS, LANES = "set-up", "classes, modes or causes", "cache groups", "lanes"
COMES = "sequences that come, end or give way, each once"
LOOPS: dict[str, dict[str, str]] = {
    "kvledger_engine/scheduler.py": {"Scheduler.__init__": SET_UP, "Scheduler._share_out": KINDS},
    "kvledger_engine/admitting.py": {"Admission.admit": COMES, "Admission._start": COMES},
    "kvledger_engine/sharing.py": {
        "SharedAdmission.__init__": SET_UP,
        "SharedAdmission._class_left": KINDS,
        "SharedAdmission._serve": LANES,
        "SharedAdmission._ranked": LANES,
        "SharedAdmission._judge_others": LANES,
        "SharedAdmission._serve_head": "a lane's head, and one to prefer to it",
        "SharedAdmission._make_way": COMES,
    },
    "kvledger_engine/turns.py": {"": SET_UP, "in_turn": LANES, "count_passes": LANES},
    "kvledger_engine/reuse.py": {"ReuseWindow.order": "the first few of one lane"},
    "kvledger_engine/fairshare.py": {"FairShare.look": "priorities of tenants that come or go"},
    "kvledger_engine/budgets.py": {"Budgets.__init__": SET_UP},
    "kvledger_engine/room.py": {
        "Room.__init__": SET_UP,
        "Room.make": COMES,
        "Room.preempt": COMES,
        "Room.swaps_failed": COMES,
    },
    "kvledger_engine/victims.py": {
        "spare": COMES,
        "_least": "halvings",
        "_earliest": COMES,
        "_enough": "halvings",
    },
    "kvledger_engine/giveway.py": {},
    "kvledger_engine/running.py": {},
    "kvledger_engine/pool.py": {},
    "kvledger_engine/tables.py": {},
    "kvledger_engine/windows.py": {
        "Windows.__init__": SET_UP,
        "Windows._check": SET_UP,
        "most_blocks": GROUPS,
    },
    "kvledger_engine/memory.py": {"CacheMemory._settings": SET_UP},
    "kvledger_engine/kvcache.py": {"KvCache.lay_out": "twice at most", "KvCache.group_tables": GROUPS},
    "kvledger_engine/beginnings.py": {"Beginnings.admit": GROUPS, "Beginnings.fork": "a sequence and its fork"},
    "kvledger_engine/growth.py": {},
    "kvledger_engine/commits.py": {},
    "kvledger_engine/copies.py": {},
    "kvledger_engine/holdings.py": {},
    "kvledger_engine/chains.py": {},
    "kvledger_engine/hits.py": {"PrefixHits.within": GROUPS},
    "kvledger_engine/prefixkeys.py": {"prefix_salt": "parts of one key"},
    "kvledger_engine/sampling.py": {},
    "kvledger/writer.py": {"Ledger.__init__": SET_UP},
    "kvledger/creation.py": {"create": SET_UP},
    "kvledger/blockseconds.py": {
        "BlockSeconds.advance": "tenants with blocks",
        "BlockSeconds._learn": "tenants with blocks",
    },
    "kvledger/columns.py": {"TenantColumns.__init__": SET_UP},
    "kvledger/peaks.py": {},
    "kvledger/ring.py": {"packer": SET_UP},
    "kvledger/stores.py": {},
}
"""By module, what loops there, by qualified name, and over what."""
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Finder(ast.NodeVisitor):
    """The qualified names of functions in which there is a loop, a comprehension, `map` or `filter`; "" = none."""

    def __init__(self, source: str) -> None:
        self._names: list[str] = []
        self.found: set[str] = set()
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        """Note a loop, and where it is."""
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if isinstance(node, _LOOPS) or called in ("map", "filter"):
            self.found.add(".".join(self._names))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self._names.append(node.name)
            self.generic_visit(node)
            self._names.pop()
        else:
            self.generic_visit(node)


@pytest.mark.parametrize("module", LOOPS)
def test_the_loops_of_schedule_pool_tables_prefix_ledger_and_sampling_are_those_listed(module: str) -> None:
    assert Finder((ENGINE / module).read_text()).found == set(LOOPS[module])


@pytest.mark.parametrize(
    "loop",
    [
        "for slot in slots: f(slot)",
        "while slots: slots.pop()",
        "x = [f(slot) for slot in slots]",
        "x = {f(slot) for slot in slots}",
        "x = {slot: 1 for slot in slots}",
        "x = sum(f(slot) for slot in slots)",
        "x = list(map(f, slots))",
    ],
)
def test_a_loop_of_any_form_is_found_with_its_place(loop: str) -> None:
    assert Finder(f"class A:\n    def b(self, slots):\n        {loop}").found == {"A.b"}
    assert Finder("class A:\n    def b(self, slots):\n        return slots + 1").found == set()
