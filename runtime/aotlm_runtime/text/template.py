"""Renders chat templates, in a sandbox, with the names that transformers gives them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import jinja2
import jinja2.ext
import jinja2.sandbox

from aotlm_runtime.errors import TemplateFailedError, TemplateInvalidError

Message = Mapping[str, Any]

# What the text ends with: the start of the assistant's next message, the last message as far as it
# goes, or nothing but the messages.
Ending = Literal["ask", "continue", "none"]

# What a template is given anyway, so nobody else can set it.
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")

_GENERATION = {"generation"}


class ChatTemplate:
    """A compiled chat template and the special tokens that it may name (`bos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template.

        Raises:
            TemplateInvalidError: its syntax is wrong.
        """
        self._special_tokens = dict(special_tokens)
        self._words = frozenset(re.findall(r"\w+", source))
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateInvalidError(
                f"the chat template does not compile: {error}; use --raw to go without it"
            ) from error

    def reads(self, name: str) -> bool:
        """Say whether a setting of that name can have an effect."""
        return name in self._words

    def render(
        self, messages: Sequence[Message], *, asks: bool = True, settings: Mapping[str, Any] = {}
    ) -> str:
        """Return the text of messages; if it `asks`, with the start of the assistant's next.

        `settings` are names that the template may look at, such as `enable_thinking`.

        Raises:
            TemplateFailedError: the template refused the messages.
        """
        names = {
            **self._special_tokens,
            **settings,
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": asks,
        }
        try:
            return self._template.render(names)
        # A template computes: it can divide by zero or add a string to a number.
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise TemplateFailedError(
                f"the chat template failed on {len(messages)} messages: {error}; "
                "use --raw to go without it"
            ) from error


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscored names, which lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _Dict:
    """The `dict` of templates: makes dictionaries, and has no attributes that lead elsewhere."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Generation(jinja2.ext.Extension):
    """The block `generation` marks an assistant's own words for training; here it is its body."""

    tags = _GENERATION

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Turn the block into a call that returns the body, which gives it a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} starts with an underscore")
