"""`kvledger drill URL`: arguments to a plan, progress on stderr, the report on stdout. Sends nothing itself."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.drill.levels import AgentLevels, Levels, PageLevels
from kvledger_agent.drill.plan import MOST_CLIENTS, DrillPlan
from kvledger_agent.drill.report import render
from kvledger_agent.drill.runner import drill
from kvledger_agent.load.client import API_KEY_VARIABLE
from kvledger_agent.load.tokens import PromptAs
from kvledger_agent.screen import console

_PLAN = DrillPlan()
"""Where the defaults are written down."""


class DrillCommand:
    """Lets clients go in three ways and says whether the pool came back."""

    name = "drill"
    help = "cancel, time out and reconnect against a server, and say whether its pool comes back"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the server, who tells its level, and the plan."""
        add_json_flag(parser)
        parser.add_argument("url", metavar="URL", help="an OpenAI-compatible server, with or without /v1")
        parser.add_argument("--agent", metavar="URL", help="the agent that watches it (the server's own page)")
        parser.add_argument("--engine", metavar="NAME:RANK", help="which of the agent's engines it is (the only one)")
        parser.add_argument("--model", help="name to send (the first model the server lists)")
        parser.add_argument(
            "--prompt-as", choices=list(PromptAs), default=PromptAs.TOKENS, help="how prompts are sent (tokens)"
        )
        parser.add_argument("--no-ignore-eos", action="store_true", help="for servers that refuse ignore_eos")
        for flag, default, metavar, what in (
            ("--clients", _PLAN.clients, "N", f"requests open at once, at most {MOST_CLIENTS}"),
            ("--prompt-tokens", _PLAN.prompt_tokens, "N", "prompt tokens of each request"),
            ("--max-tokens", _PLAN.max_tokens, "N", "output tokens of each request, which is dropped before its end"),
            ("--token-ids-below", _PLAN.token_ids_below, "N", "prompt token ids are in [1, N)"),
            ("--give-up", _PLAN.give_up_seconds, "SECONDS", "patience of the clients that time out"),
            ("--rounds", _PLAN.rounds, "N", "how often each client of the storm comes again"),
            ("--patience", _PLAN.patience_seconds, "SECONDS", "how long each single event may take"),
        ):
            parser.add_argument(
                flag, type=type(default), default=default, metavar=metavar, help=f"{what} (%(default)s)"
            )
        parser.epilog = (
            "The server should have no other traffic. Its level is read from the agent, or from its own page; "
            "kvledger's own engine has none, and needs --agent. Exit code 0: it came back after every phase; 1: it did "
            f"not; 2: nobody can tell, and which signal is missing. The API key, if any, is in {API_KEY_VARIABLE}."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run the drill. Raises `DrillImpossible` or `UsageError`, whose exit code is 2."""
        plan = DrillPlan(
            clients=args.clients,
            prompt_tokens=args.prompt_tokens,
            max_tokens=args.max_tokens,
            give_up_seconds=args.give_up,
            rounds=args.rounds,
            patience_seconds=args.patience,
            seed=secrets.randbits(32),
            model=args.model,
            prompt_as=PromptAs(args.prompt_as),
            token_ids_below=args.token_ids_below,
            ignore_eos=not args.no_ignore_eos,
        )
        levels: Levels = AgentLevels(args.agent, args.engine) if args.agent is not None else PageLevels(args.url)
        report = asyncio.run(drill(plan, url=args.url, levels=levels, say=_say))
        if args.json:
            print_json({"exit_code": report.exit_code, "report": report})
        else:
            console().print(render(report))
        return report.exit_code


def _say(line: str) -> None:
    print(f"drill: {line}", file=sys.stderr, flush=True)


COMMAND = DrillCommand()
