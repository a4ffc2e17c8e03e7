"""Scenarios that no threshold was chosen by: other sizes, lengths, rates and tenants than those of `scenarios`.

Written before any of them had been run. What they are taken for is in docs/verdict.md, misses and all, apart from the
scenarios by which the rules were made. Whoever changes a threshold because of a miss moves that scenario over there.
"""

from __future__ import annotations

from kvledger.words import Reason as R
from tests.verdict.load import Stream
from tests.verdict.scenario import Scenario

_CHAT = Stream(clients=6, prompt=300, tokens=100, tenant="chat")
_THREE = ("north", "south", "west")

HELD_OUT: tuple[Scenario, ...] = (
    Scenario(
        name="two documents and a crowd",
        reason=R.LONG_REQUESTS,
        says="two requests hold two thirds of a pool of 220 blocks of 32, twenty-four short ones share the rest",
        neighbours=(R.MANY_REQUESTS, R.HEAD_OF_LINE, R.ONE_TENANT),
        flags="--blocks 220 --block-size 32 --step-time base=30ms",
        streams=(
            Stream(clients=2, prompt=2400, tokens=1500),
            Stream(clients=24, prompt=160, tokens=60, after=1.0),
        ),
    ),
    Scenario(
        name="one of two departments",
        reason=R.ONE_TENANT,
        says="two tenants with requests of the same size, one with thirty clients, the other with six",
        neighbours=(R.LONG_REQUESTS, R.MANY_REQUESTS, R.QUOTA),
        flags="--blocks 120 --block-size 32",
        streams=(Stream(clients=30, prompt=300, tokens=100, tenant="research"), _CHAT),
    ),
    Scenario(
        name="deferred frees pile up",
        reason=R.RETAINED_PREFIXES,
        says="half of 300 blocks wait to be freed by somebody else, twenty clients want the rest",
        neighbours=(R.LEAK, R.MANY_REQUESTS),
        odd="retaining_deferred",
    ),
    Scenario(
        name="a system prompt of fifty blocks",
        reason=R.SHARED_PREFIXES,
        says="1600 leading tokens in blocks of 32 that all share, in a pool of 80",
        neighbours=(R.MANY_REQUESTS, R.LONG_REQUESTS, R.RETAINED_PREFIXES),
        flags="--blocks 80 --block-size 32 --step-time base=30ms",
        streams=(Stream(clients=20, prompt=1664, prefix=1600, tokens=50),),
    ),
    Scenario(
        name="three tenants alike, blocks of eight",
        reason=R.MANY_REQUESTS,
        says="forty-five clients of three tenants, of whom twenty fit into 400 blocks of 8",
        neighbours=(R.ONE_TENANT, R.BATCH_SLOTS, R.OVERLOAD),
        flags="--blocks 400 --block-size 8 --step-time base=25ms",
        streams=tuple(Stream(clients=15, prompt=120, tokens=40, tenant=name) for name in _THREE),
    ),
    Scenario(
        name="stories in a small pool",
        reason=R.PREEMPTION_THRASH,
        says="twelve prompts of 60 tokens want 300 more each, in 100 blocks of 8",
        neighbours=(R.MANY_REQUESTS, R.LONG_REQUESTS),
        flags="--blocks 100 --block-size 8 --no-prefix-caching",
        streams=(Stream(clients=12, prompt=60, tokens=300),),
    ),
    Scenario(
        name="three tenants at the door",
        reason=R.OVERLOAD,
        says="twelve arrivals a second from each of three tenants, a queue of six, most refused",
        neighbours=(R.TENANT_OVERLOAD, R.MANY_REQUESTS, R.BATCH_SLOTS),
        flags="--blocks 64 --block-size 32 --max-waiting 6",
        streams=tuple(Stream(rate=12, prompt=200, tokens=80, tenant=name) for name in _THREE),
    ),
    Scenario(
        name="a crawler at the door",
        reason=R.TENANT_OVERLOAD,
        says="forty arrivals a second of one tenant, four each of two others, a queue of five",
        neighbours=(R.OVERLOAD, R.ONE_TENANT, R.QUOTA),
        flags="--blocks 72 --max-waiting 5 --step-time base=30ms",
        streams=(
            Stream(rate=40, prompt=150, tokens=50, tenant="crawler"),
            Stream(rate=4, prompt=150, tokens=50, tenant="north"),
            Stream(rate=4, prompt=150, tokens=50, tenant="south"),
        ),
    ),
    Scenario(
        name="twelve slots, two tenants",
        reason=R.BATCH_SLOTS,
        says="max_num_seqs=12, thirty clients of two tenants, two thousand blocks of 8",
        neighbours=(R.MANY_REQUESTS, R.COMPUTE, R.ONE_TENANT),
        flags="--blocks 2000 --block-size 8 --max-num-seqs 12 --step-time base=25ms",
        streams=tuple(Stream(clients=15, prompt=300, tokens=50, tenant=name) for name in _THREE[:2]),
    ),
    Scenario(
        name="prompts of seven steps",
        reason=R.TOKEN_BUDGET,
        says="max_num_batched_tokens=96 and prompts of 700 tokens from twenty clients",
        neighbours=(R.BATCH_SLOTS, R.COMPUTE),
        flags="--blocks 4096 --max-num-batched-tokens 96",
        streams=(Stream(clients=20, prompt=700, tokens=12),),
    ),
    Scenario(
        name="two books in small pieces",
        reason=R.TOKEN_BUDGET,
        says="prompts of 3000 tokens, 16 a step: for half a minute the only thing that moves is a prefill",
        neighbours=(R.NO_PROGRESS, R.NO_HEARTBEAT),
        flags="--blocks 1024 --max-num-batched-tokens 16 --max-num-seqs 16 --step-time base=150ms",
        streams=(Stream(clients=2, prompt=3000, tokens=4), Stream(clients=3, prompt=40, tokens=4, after=1.0)),
    ),
    Scenario(
        name="a book among notes",
        reason=R.HEAD_OF_LINE,
        says="a prompt of 188 of 300 blocks of 8 stands before fourteen clients with small ones",
        neighbours=(R.LONG_REQUESTS, R.MANY_REQUESTS),
        flags="--blocks 300 --block-size 8",
        streams=(Stream(clients=1, prompt=1500, tokens=4), Stream(clients=14, prompt=30, tokens=60)),
    ),
    Scenario(
        name="a quota of a fifteenth",
        reason=R.QUOTA,
        says="a tenant that may hold 40 of 600 blocks has twenty clients, another two",
        neighbours=(R.ONE_TENANT, R.MANY_REQUESTS),
        flags="--blocks 600",
        tenants="[tenants.trial]\nmax_blocks = 40\nmax_context = 400\n",
        streams=(Stream(clients=20, prompt=150, tokens=40, tenant="trial"), Stream(clients=2, prompt=80, tokens=30)),
    ),
    Scenario(
        name="an allocator of thirty milliseconds",
        reason=R.SLOW_ALLOCATION,
        says="30 ms in every call of the allocator, fourteen clients, steps of 20 ms",
        neighbours=(R.COMPUTE, R.BATCH_SLOTS),
        odd="slow_allocator_thirty",
    ),
    Scenario(
        name="long answers, slow steps",
        reason=R.COMPUTE,
        says="twenty-four of thirty-two slots decode, 60 ms and 4 ms a sequence each step, the pool nearly empty",
        neighbours=(R.BATCH_SLOTS, R.LIGHT, R.FULL_USE),
        flags="--blocks 2048 --max-num-seqs 32 --step-time base=60ms,seq=4ms",
        streams=(Stream(clients=24, prompt=40, tokens=100),),
    ),
    Scenario(
        name="a block twice on the free list",
        reason=R.LEAK,
        says="--fault free_list_duplicate, blocks of 8, eight clients",
        neighbours=(R.LIGHT, R.MANY_REQUESTS, R.COMPUTE),
        flags="--blocks 400 --block-size 8 --no-prefix-caching --fault free_list_duplicate",
        streams=(Stream(clients=8, prompt=90, tokens=30),),
    ),
    Scenario(
        name="nothing moves behind eight slots",
        reason=R.NO_PROGRESS,
        says="publications go on, eight run and twelve wait",
        neighbours=(R.NO_HEARTBEAT, R.BATCH_SLOTS, R.TOKEN_BUDGET),
        odd="stuck_at_eight_slots",
    ),
    Scenario(
        name="stopped with a queue",
        reason=R.NO_HEARTBEAT,
        says="SIGSTOP while fourteen wait for the pool",
        neighbours=(R.NO_PROGRESS, R.MANY_REQUESTS),
        flags="--blocks 96",
        streams=(Stream(clients=24, prompt=120, tokens=60),),
        deed="pause",
    ),
    Scenario(
        name="killed with a queue",
        reason=R.MISSING_SIGNALS,
        says="SIGKILL while requests wait for four slots",
        neighbours=(R.NO_HEARTBEAT, R.BATCH_SLOTS),
        flags="--blocks 512 --max-num-seqs 4",
        streams=(Stream(clients=14, prompt=64, tokens=40),),
        deed="kill",
    ),
    Scenario(
        name="six share the pool",
        reason=R.FULL_USE,
        says="six requests of nine to ten blocks of 32 in a pool of 66",
        neighbours=(R.LONG_REQUESTS, R.LIGHT),
        flags="--blocks 66 --block-size 32",
        streams=(Stream(clients=6, prompt=290, tokens=28),),
    ),
    Scenario(
        name="a quiet afternoon",
        reason=R.LIGHT,
        says="three prompts of 500 tokens every two seconds, blocks of 8",
        neighbours=(R.COMPUTE, R.MISSING_SIGNALS),
        flags="--blocks 2048 --block-size 8",
        streams=(Stream(rate=1.5, prompt=500, tokens=20),),
    ),
    Scenario(
        name="ten of sixty-four",
        reason=R.LIGHT,
        says="ten clients all the time, a sixth of the slots and a tenth of the pool",
        neighbours=(R.COMPUTE, R.FULL_USE),
        flags="--blocks 1024 --step-time base=30ms",
        streams=(Stream(clients=10, prompt=120, tokens=40),),
    ),
)
