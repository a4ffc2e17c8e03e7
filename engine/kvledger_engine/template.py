"""Chat templates: messages to the text of a prompt. Owns the sandbox they run in; never sees a token.

A checkpoint's template is a program of strangers: it runs in jinja2's immutable sandbox, as `transformers` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvledger_engine.errors import EngineError

PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
"""The template of the models that come without a checkpoint: one line a message, and a line to be continued."""
_TEMPLATE_FILE, _CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class BadTemplate(EngineError):
    """A chat template that cannot be read or compiled; the message names the file."""


class BadMessages(Exception):
    """Messages that the template refuses, or cannot be rendered with."""


class ChatTemplate:
    """A compiled template with the special tokens it writes. Raises `BadTemplate`."""

    def __init__(self, source: str, *, origin: str = "template", special_tokens: dict[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        self._special_tokens = special_tokens or {}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BadTemplate(f"{origin}: {error}; use the template that came with the checkpoint") from error

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The text of a prompt that the assistant is to continue. Raises `BadMessages`."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise BadMessages(f"the model's chat template does not take these messages: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    """JSON as it is; jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def open_template(tokenizer_path: str) -> ChatTemplate | None:
    """The template beside a `tokenizer.json`, None where there is none; the plain one for models without a checkpoint.

    `chat_template.jinja` goes before `tokenizer_config.json`. Raises `BadTemplate`.
    """
    if not tokenizer_path:
        return ChatTemplate(PLAIN)
    directory = Path(tokenizer_path).parent
    config = _config(directory / _CONFIG_FILE)
    own = directory / _TEMPLATE_FILE
    try:
        source = own.read_text() if own.is_file() else _source(config.get("chat_template"))
    except (OSError, UnicodeError) as error:
        raise BadTemplate(f"{own}: {error}") from error
    if source is None:
        return None
    special = {name: _token(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
    return ChatTemplate(source, origin=str(own if own.is_file() else directory / _CONFIG_FILE), special_tokens=special)


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadTemplate(f"{path}: {error}; use the file that came with the checkpoint") from error
    if not isinstance(found, dict):
        raise BadTemplate(f"{path}: no JSON object; use the file that came with the checkpoint")
    return found


def _source(template: Any) -> str | None:
    """A template, or the one called `default` of several."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)
