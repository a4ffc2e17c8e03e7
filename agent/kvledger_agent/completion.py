"""`kvledger completion`: prints the completion script of a shell, drawn from the argument parser itself."""

from __future__ import annotations

import argparse

import shtab

from kvledger_agent.cli import build_parser


class CompletionCommand:
    """Prints a script to source from the shell's start-up file."""

    name = "completion"
    help = "print a completion script: source <(kvledger completion bash)"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the one argument, the shell."""
        parser.add_argument("shell", choices=("bash", "zsh"), help="the shell to complete for")

    def run(self, args: argparse.Namespace) -> int:
        """Print the script for all installed subcommands. Returns 0."""
        print(shtab.complete(build_parser(), shell=args.shell))
        return 0


COMMAND = CompletionCommand()
