"""The bodies of completion requests, as JSON text. Knows options and prompts; sends nothing."""

from __future__ import annotations

import json

from kvledger_agent.load.arrivals import Arrival
from kvledger_agent.load.plan import RequestOptions
from kvledger_agent.load.tokens import PromptWriter


class BodyWriter:
    """Writes the body of each request: what all have in common once, then its own length and prompt."""

    def __init__(self, *, model: str, options: RequestOptions, prompts: PromptWriter) -> None:
        fields: dict[str, object] = {"model": model, "stream": True, "temperature": 0.0}
        if options.ask_usage:
            fields["stream_options"] = {"include_usage": True}
        if options.ignore_eos:
            fields["ignore_eos"] = True
        self._begin, self._prompts = json.dumps(fields)[:-1], prompts

    def write(self, arrival: Arrival) -> bytes:
        """The whole body of one request, UTF-8."""
        written = f'{self._begin}, "max_tokens": {arrival.output_tokens}, "prompt": {self._prompts.json(arrival)}}}'
        return written.encode()
