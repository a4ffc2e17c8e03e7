"""The arguments of `kvledger load` and the plan they describe. Reads a trace file; sends nothing."""

from __future__ import annotations

import argparse
import dataclasses

from kvledger_agent.command import path_argument
from kvledger_agent.load.plan import LoadPlan, RequestOptions
from kvledger_agent.load.profiles import PROFILES, REPLAY, Profile
from kvledger_agent.load.tokens import PromptAs
from kvledger_agent.load.traces import MOST_TOKENS, read_trace

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_SECONDS = 30.0
DEFAULT_PROFILE = "mixed"
_PLAN = LoadPlan(requests=1, profile=PROFILES[DEFAULT_PROFILE])
"""Where the other defaults are written down."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add everything but `--json`, grouped as people look for it."""
    _add_endpoint(parser.add_argument_group("endpoint"))
    _add_arrivals(parser.add_argument_group("arrivals"))
    _add_content(parser.add_argument_group("content and clients"))


def plan_of(args: argparse.Namespace) -> LoadPlan:
    """The plan the arguments describe.

    Raises:
        UsageError: values that make no plan.
        TraceError: the trace cannot be read.
    """
    trace = read_trace(args.trace) if args.trace else None
    endless = trace is None and args.duration is None and args.requests is None
    return LoadPlan(
        profile=_profile_of(args),
        seed=args.seed,
        rate_per_second=args.rate,
        burst=args.burst,
        duration_seconds=DEFAULT_SECONDS if endless else args.duration,
        requests=args.requests,
        tenants=args.tenants,
        prefixes_per_tenant=args.prefixes_per_tenant,
        length_scale=args.length_scale,
        time_scale=args.time_scale,
        trace=trace,
        max_in_flight=args.max_in_flight,
        drain_seconds=args.drain,
        options=RequestOptions(
            model=args.model,
            prompt_as=PromptAs(args.prompt_as),
            token_ids_below=args.token_ids_below,
            patience_seconds=args.patience,
            ignore_eos=args.ignore_eos,
            ask_usage=not args.no_usage,
        ),
    )


def _profile_of(args: argparse.Namespace) -> Profile:
    named = args.profile or (None if args.trace else DEFAULT_PROFILE)
    profile = PROFILES[named] if named else REPLAY
    given = {
        "prefix_percent": args.prefix_percent,
        "prefix_tokens": args.prefix_tokens,
        "disconnect_percent": args.disconnect_percent,
        "timeout_percent": args.timeout_percent,
        "reconnect_percent": args.reconnect_percent,
    }
    return dataclasses.replace(profile, **{name: value for name, value in given.items() if value is not None})


def _add_endpoint(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--url", default=DEFAULT_URL, help="with or without /v1 (%(default)s)")
    group.add_argument("--model", help="name to send (the first model the endpoint lists)")
    group.add_argument(
        "--prompt-as", choices=list(PromptAs), default=PromptAs.TOKENS, help="how prompts are sent (tokens)"
    )
    group.add_argument("--ignore-eos", action="store_true", help="ask for exactly max_tokens tokens (vLLM, SGLang)")
    group.add_argument("--no-usage", action="store_true", help="for endpoints that refuse stream_options")
    _add_number(group, "--token-ids-below", _PLAN.options.token_ids_below, "N", "prompt token ids are in [1, N)")
    _add_number(group, "--patience", _PLAN.options.patience_seconds, "SECONDS", "give any request up after this")


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", type=path_argument, metavar="FILE", help="replay a Mooncake JSONL or Azure CSV trace")
    until = f"end the arrivals after this ({DEFAULT_SECONDS:g}, or with the trace)"
    group.add_argument("--for", dest="duration", type=float, metavar="SECONDS", help=until)
    group.add_argument("--requests", type=int, metavar="N", help="end the arrivals after this many")
    _add_number(group, "--rate", _PLAN.rate_per_second, "N", "requests per second, Poisson")
    _add_number(group, "--burst", _PLAN.burst, "N", "requests that arrive at one instant, at the same mean rate")
    _add_number(group, "--time-scale", _PLAN.time_scale, "X", "multiplies a trace's times: 0.1 is ten times as fast")
    _add_number(
        group, "--max-in-flight", _PLAN.max_in_flight, "N", "drop and count arrivals above this many open requests"
    )
    _add_number(
        group, "--drain", _PLAN.drain_seconds, "SECONDS", "time left to open requests when the arrivals are over"
    )


def _add_content(group: argparse._ArgumentGroup) -> None:
    what = f"lengths, prefixes and fates ({DEFAULT_PROFILE}); with a trace, prefixes and fates only"
    group.add_argument("--profile", choices=list(PROFILES), help=what)
    _add_number(group, "--seed", _PLAN.seed, "N", "of arrivals, lengths, content and fates")
    _add_number(group, "--length-scale", _PLAN.length_scale, "X", "multiplies all lengths")
    _add_number(group, "--tenants", _PLAN.tenants, "N", "number of tenants")
    _add_number(group, "--prefixes-per-tenant", _PLAN.prefixes_per_tenant, "K", "system prefixes of each tenant")
    group.add_argument("--prefix-tokens", type=_bounds, metavar="LOW:HIGH", help="length of a prefix (the profile's)")
    for flag, share, does in (
        ("--prefix-share", "prefix", "begin with a system prefix; in an Azure trace, within the prompt's own length"),
        ("--disconnect", "disconnect", "are dropped by their client"),
        ("--timeouts", "timeout", "are given up by an impatient client"),
        ("--reconnect", "reconnect", "are dropped and sent again at once"),
    ):
        what = f"requests that {does} (the profile's)"
        group.add_argument(flag, dest=f"{share}_percent", type=float, metavar="PERCENT", help=what)


def _add_number(group: argparse._ArgumentGroup, flag: str, default: float, metavar: str, what: str) -> None:
    """A number of the default's own type, with the default in its help text."""
    group.add_argument(flag, type=type(default), default=default, metavar=metavar, help=f"{what} (%(default)s)")


def _bounds(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        bounds = int(low), int(high or low)
    except ValueError:
        bounds = 0, 0
    if not 0 < bounds[0] <= bounds[1] <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r}: give LOW:HIGH with 0 < LOW <= HIGH <= {MOST_TOKENS:,}")
    return bounds
