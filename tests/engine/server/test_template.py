"""Chat templates of checkpoints: rendered as by `transformers`, in a sandbox, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvledger_engine.template import PLAIN, BadMessages, BadTemplate, ChatTemplate, open_template

CHATML = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>{% endfor %}\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": " Grüße & <b> "}]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with a tokenizer configuration; returns the path of its `tokenizer.json`."""
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "chat_template": CHATML}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path / "tokenizer.json"


def rendered(path: Path) -> str:
    template = open_template(str(path))
    assert template is not None
    return template.render(MESSAGES)


def test_the_template_of_the_tokenizer_configuration_is_used_with_its_special_tokens(checkpoint: Path) -> None:
    assert rendered(checkpoint) == "<s><|im_start|>user\nGrüße & <b><|im_end|><|im_start|>assistant\n"


def test_the_rendering_is_that_of_transformers(checkpoint: Path) -> None:
    chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    (theirs,), _ = chat_template_utils.render_jinja_template(
        [MESSAGES], chat_template=CHATML, add_generation_prompt=True, bos_token="<s>"
    )
    assert rendered(checkpoint) == theirs


def test_a_template_file_goes_first_and_of_several_templates_the_default_is_used(checkpoint: Path) -> None:
    config = {"chat_template": [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]}
    checkpoint.with_name("tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(checkpoint) == "D"
    checkpoint.with_name("chat_template.jinja").write_text("F")
    assert rendered(checkpoint) == "F"


def test_models_without_a_checkpoint_have_the_plain_template_and_a_bare_checkpoint_has_none(tmp_path: Path) -> None:
    plain = open_template("")
    assert plain is not None
    assert plain.render([{"role": "user", "content": "hi"}]) == "user: hi\nassistant:"
    assert open_template(str(tmp_path / "tokenizer.json")) is None
    assert ChatTemplate(PLAIN).render([]) == "assistant:"


def test_messages_that_the_template_refuses_or_cannot_take_are_the_clients_fault(checkpoint: Path) -> None:
    template = open_template(str(checkpoint))
    assert template is not None
    with pytest.raises(BadMessages, match="no tools"):
        template.render([{"role": "tool", "content": ""}])
    with pytest.raises(BadMessages):
        ChatTemplate("{{ messages[3].content + 1 }}").render(MESSAGES)


@pytest.mark.parametrize(
    "escape", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__init__ }}"]
)
def test_a_template_can_neither_change_the_messages_nor_leave_the_sandbox(escape: str) -> None:
    messages = list(MESSAGES)
    try:
        shown = ChatTemplate(escape).render(messages)
    except BadMessages:
        shown = ""
    assert "object" not in shown
    assert messages == MESSAGES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", "{% for %}"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"chat_template": "{{"}'),
    ],
)
def test_a_template_that_cannot_be_compiled_names_its_file(checkpoint: Path, name: str, content: str) -> None:
    checkpoint.with_name(name).write_text(content)
    with pytest.raises(BadTemplate, match=name):
        open_template(str(checkpoint))
