"""Chat templates that do not serve are faults at start, with their file and line."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from inference_api.errors import InvalidRequest, StartupError
from inference_api.settings import EMBEDDED_MODEL
from inference_api.text import bounded_jinja
from inference_api.text.chat_prompts import NO_EXTRAS, Extras, plain_chat_prompt, render_template
from inference_api.text.chat_template import SIMPLEST, ChatTemplate
from inference_api.text.tokenizer_config import read_tokenizer
from inference_api.text.tokens import load_tokenizer

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """The embedded model's tokenizer with another template, in a file or in the configuration."""

    def make(template: object, in_config: bool = False) -> Path:
        (tmp_path / "tokenizer.json").write_bytes((EMBEDDED_MODEL / "tokenizer.json").read_bytes())
        config = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if in_config:
            config["chat_template"] = template  # type: ignore[assignment]
        else:
            (tmp_path / "chat_template.jinja").write_text(str(template))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return make


def fault(model: Path) -> str:
    with pytest.raises(StartupError) as caught:
        load_tokenizer(model, frozenset())
    [only] = caught.value.faults
    return only


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{% for message in messages %}\n{{ message.content }\n{% endfor %}", 2),
        ("{{ messages[0].content }}\n\n{% endfor %}", 3),
        ("{{ bos_token }}\n{{ messages | no_such_filter }}", 2),
        ("{{ 'a' }}\n{% no_such_tag %}", 2),
    ],
)
def test_template_that_is_not_jinja_is_named_with_its_line(
    folder: Folder, template: str, line: int
) -> None:
    message = fault(folder(template))
    assert f"chat_template.jinja is not valid Jinja, line {line}: " in message
    assert "correct it or remove it" in message


def test_template_in_the_configuration_is_named_there(folder: Folder) -> None:
    assert "tokenizer_config.json is not valid Jinja, line 1" in fault(
        folder("{{ a", in_config=True)
    )


@pytest.mark.parametrize("in_config", [True, False])
def test_template_above_its_bound_is_refused_wherever_it_is(
    folder: Folder, in_config: bool
) -> None:
    model = folder("a" * 1_000_001, in_config)
    assert "has 1000001 bytes, more than 1000000; get the file again" in fault(model)


@pytest.mark.parametrize(
    "template",
    [
        "{{ no_such_function(messages) }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[5].a }}",
    ],
)
def test_template_that_breaks_on_one_turn_is_a_fault(folder: Folder, template: str) -> None:
    assert "cannot render one message of a user (" in fault(folder(template))


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) + f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
    ids=["loops", "calls"],
)
def test_template_that_does_not_end_is_a_fault_and_later_the_clients(
    folder: Folder, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_jinja, "MAX_TURNS", 10_000)
    assert "cannot render one message of a user (RendersTooMuch: takes " in fault(folder(template))
    later = f"{{% if messages[0].content == 'long' %}}{template}{{% endif %}}"
    tokenizer = load_tokenizer(folder(later), frozenset())
    with pytest.raises(InvalidRequest, match="takes more than 10000 turns of loops and calls"):
        tokenizer.encode_chat([{"role": "user", "content": "long"}])


AMPLIFIERS = {
    "output": "{% for m in messages %}{{ messages[0].content }}{% endfor %}",
    "outputs of lists": "{% macro f() %}{% for m in messages %}{{ messages }}{% endfor %}"
    "{% endmacro %}{{ f() }}",
    "constants": "{% for m in messages %}CONSTANT{% endfor %}",
    "blocks": "{% for m in messages %}{% set a %}CONSTANT{% endset %}{% endfor %}",
    "filters": "{% for m in messages %}{% set a = messages | tojson %}{% endfor %}",
    "mapped filters": "{% set a = messages | map('tojson') | map('upper') | list %}",
    "calls": "{% for m in messages %}{% set a = messages[0].content.upper() %}{% endfor %}",
    "slices": "{% for m in messages %}{% set a = messages[0].content[1:] %}{% endfor %}",
    "sums": "{% set n = namespace(a='b') %}"
    "{% for m in messages %}{% set n.a = n.a + n.a %}{% endfor %}",
    "joins": "{% set n = namespace(a='b') %}"
    "{% for m in messages %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "lists": "{% set n = namespace(a=[1]) %}"
    "{% for m in messages %}{% set n.a = n.a + n.a %}{% endfor %}",
    "powers": "{% set n = namespace(a=9) %}"
    "{% for m in messages %}{% set n.a = n.a * n.a %}{% endfor %}",
    "arguments": "{% macro f(a, n) %}{% if n %}{{ f(a + a, n - 1) }}{% endif %}{% endmacro %}"
    "{{ f('ab', 60) }}",
    "many operands": "{{ " + " ~ ".join(["messages[0].content"] * 1000) + " }}",
    "replacements": "{{ messages[0].content.replace('b', messages[0].content) }}",
    "replacement filters": "{{ messages[0].content | replace('b', messages[0].content) }}",
    "separators": "{{ messages[0].content.join(messages) }}",
    "separator filters": "{{ messages | map('string') | join(messages[0].content) }}",
    **{
        name: "{{ " + expression + " }}"
        for name, expression in {
            "products": "'a' * 10 ** 9",
            "products of numbers first": "10 ** 9 * [1]",
            "exponents": "10 ** (10 ** 9)",
            "widths": "'%1000000000d' % 1",
            "widths from values": "'%*d' % (10 ** 9, 1)",
            "formats": "'{:>1000000000}'.format(1)",
            "formats in formats": "'{:{}}'.format(1, 10 ** 9)",
            "format filters": "'%1000000000d' | format(1)",
            "centers": "'a'.center(10 ** 9)",
            "padding": "'a'.ljust(10 ** 9)",
            "tabs": "('\t' * 100).expandtabs(10 ** 7)",
            "indents": "('\n' * 100) | indent(10 ** 7)",
            "indented JSON": "messages | tojson(indent=10 ** 9)",
            "batches": "[1] | batch(10 ** 9, 'a') | list",
            "bytes": "(1).to_bytes(10 ** 9)",
        }.items()
    },
}


@pytest.mark.parametrize("template", AMPLIFIERS.values(), ids=AMPLIFIERS)
def test_a_template_makes_a_bounded_text_of_any_messages(
    folder: Folder, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_jinja, "MAX_CHARS", 200_000)
    template = template.replace("CONSTANT", 2000 * "c")
    later = f"{{% if messages | length > 9 %}}{template}{{% else %}}{{{{ messages }}}}{{% endif %}}"
    tokenizer = load_tokenizer(folder(later), frozenset())
    messages = [{"role": "user", "content": 500 * "ab"} for _ in range(300)]
    tracemalloc.start()
    try:
        with pytest.raises(
            InvalidRequest, match="takes more than 200000 characters of text; send "
        ):
            tokenizer.encode_chat(messages)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_no_option_of_a_request_takes_the_place_of_the_bounds(folder: Folder) -> None:
    tokenizer = load_tokenizer(
        folder("{% for m in messages %}{{ m.content }}{% endfor %}"), frozenset()
    )
    options = Extras(options={bounded_jinja.ALLOWANCE: 1})
    plain, bounded = (tokenizer.encode_chat(SIMPLEST, each) for each in (NO_EXTRAS, options))
    assert bounded == plain


def test_several_templates_without_a_default_are_a_fault(folder: Folder) -> None:
    templates = [{"name": "a", "template": "{{ 1 }}"}, {"name": "b", "template": "{{ 2 }}"}]
    assert "no default" in fault(folder(templates, in_config=True))


@pytest.mark.parametrize(
    "template",
    [
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}",
        "{{ strftime_now('%Y') }}{{ messages | tojson }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    ],
    ids=["refuses", "uses what transformers adds", "marks what is generated"],
)
def test_template_that_may_serve_is_none(folder: Folder, template: str) -> None:
    assert load_tokenizer(folder(template), frozenset()).info()["chat_template"] == template


def test_models_without_a_template_start(folder: Folder) -> None:
    model = folder("")
    (model / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(model, frozenset())
    assert tokenizer.encode_chat(SIMPLEST) == tokenizer.encode(plain_chat_prompt(SIMPLEST))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.of_it }}", "has no attribute"),
        ("{{ messages[0].content + 1 }}", "TypeError in it"),
        ("{{ 1 / 0 }}", "ZeroDivisionError in it"),
        ("{{ 'secret'.index('x') }}", "ValueError in it"),
        ("{{ range(10 ** 9) }}", "OverflowError in it"),
        ("{{ messages | tojson(indent=messages) }}", "TypeError in it"),
    ],
)
def test_messages_that_a_template_breaks_on_are_the_clients_fault(
    folder: Folder, broken: str, reason: str
) -> None:
    template = f"{{% if messages[0].content == 'break' %}}{broken}{{% endif %}}"
    tokenizer = load_tokenizer(folder(template), frozenset())
    with pytest.raises(InvalidRequest) as caught:
        tokenizer.encode_chat([{"role": "user", "content": "break"}])
    shown = str(caught.value)
    assert shown.startswith("The model's chat template refuses the messages: ")
    assert reason in shown
    assert "secret" not in shown


def test_want_of_memory_is_none_of_the_clients() -> None:
    template = Mock(render=Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        render_template(template, SIMPLEST, NO_EXTRAS)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ dict.update(messages[0], {'role': 'system'}) }}",
        "{{ messages.append({}) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% set n = namespace() %}{% set n.__call__ = 'a'.format %}",
        "{{ namespace(__call__='a'.format) }}",
        "{{ namespace({'_a': 1}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ self.__init__.__globals__ }}",
    ],
)
def test_template_stays_in_its_sandbox(folder: Folder, escape: str) -> None:
    template = f"{{% if messages[0].content == 'try' %}}{escape}{{% endif %}}{{{{ messages }}}}"
    turns = [{"role": "user", "content": "try"}]
    tokenizer = load_tokenizer(folder(template), frozenset())
    try:
        ids = tokenizer.encode_chat(turns)
    except InvalidRequest:
        ids = []
    assert turns == [{"role": "user", "content": "try"}]
    assert tokenizer.decode(ids).strip() in ("", str(turns))  # an attribute it may not see is empty


def test_template_for_tools_is_taken_where_there_are_some(folder: Folder) -> None:
    named = {"default": "plain", "tool_use": "tools", "rag": "documents"}
    for listed in (
        [{"name": name, "template": text} for name, text in named.items()],
        "of the files",
    ):
        model = folder(listed, in_config=True)
        if isinstance(listed, str):
            (model / "chat_template.jinja").write_text(named["default"])
            (model / "chat_templates").mkdir()
            for name in ("tool_use", "rag"):
                (model / "chat_templates" / f"{name}.jinja").write_text(named[name])
        template = ChatTemplate(read_tokenizer(model)[1])
        assert template.render(SIMPLEST) == "plain"
        assert template.render(SIMPLEST, [{"type": "function"}]) == "tools"
        assert load_tokenizer(model, frozenset()).info()["chat_template"] == "plain"


def test_template_beside_the_configuration_is_found(folder: Folder) -> None:
    model = folder("")
    (model / "chat_template.jinja").unlink()
    (model / "chat_template.json").write_text('{"chat_template": "{{ b"}')
    assert "chat_template.json is not valid Jinja, line 1" in fault(model)
