"""The flags of the commands, in groups that commands share."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aotlm_runtime.generate.stream import GenerationOptions

Kind = Literal["text", "texts", "count", "number", "on", "off"]


@dataclass(frozen=True)
class Flag:
    """A flag: `--name METAVAR`; `texts` can be repeated, `on` and `off` are the default's switch.

    `count` is a whole number from `least` on. `also` are other spellings, dashes and all.
    """

    name: str
    kind: Kind
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    least: int = 1
    default: str | None = None
    also: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flag as it is written: its name first."""
        return (f"--{self.name}", *self.also)

    @property
    def explained(self) -> str:
        """Its help, with the default where it has one."""
        return f"{self.help}; default: {self.default}" if self.default else self.help

    @property
    def attribute(self) -> str:
        """The name of its value among the arguments."""
        return self.name.replace("-", "_")


LOADING = (
    Flag("threads", "count", "default: the physical cores that this process may use", "N"),
    Flag("context", "count", "tokens kept; default: the model's, up to 4096", "N"),
    Flag("verify", "on", "compare the weights with their digests; leave out what was just built"),
)
ANSWER = (
    Flag("system", "text", "what the model is told first", "TEXT"),
    Flag("raw", "off", "continue the text, without the chat template"),
    Flag("max-tokens", "count", "end an answer after N tokens", "N"),
    Flag("stop", "texts", "end an answer before this text; can be repeated", "TEXT"),
    Flag("think", "text", "what to do with thinking; default: show", choices=("show", "hide")),
    Flag("stats", "on", "print figures after an answer"),
)
SAMPLING = (
    Flag("temperature", "number", "above 0: draw tokens at random; 0: greedy", "T"),
    Flag("top-k", "count", "draw from the K likeliest tokens; default: 0, all", "K", least=0),
    Flag("top-p", "number", "draw from the likeliest tokens that reach the share P", "P"),
    Flag("min-p", "number", "draw from tokens with P times the likeliest's probability", "P"),
    Flag(
        "repeat-penalty",
        "number",
        "above 1: make tokens that were there less likely",
        "R",
        also=("--repetition-penalty",),
    ),
    Flag("seed", "count", "draw the same tokens each time", "N", least=0),
    Flag(
        "sampling",
        "text",
        "what holds where no flag says otherwise: the likeliest token (run), or what the model's "
        "publisher recommends (chat, serve)",
        choices=("greedy", "model"),
    ),
)
SERVING = (
    Flag("host", "text", "the address to listen on; default: 127.0.0.1", "ADDRESS"),
    Flag("port", "count", "default: 8080; 0 takes a free one", "N", least=0),
    Flag("api-key", "text", "ask for this key; default: $AOTLM_API_KEY, or none", "KEY"),
    Flag("name", "text", "the model's name; default: the bundle's", "NAME"),
    Flag("sessions", "count", "answers at a time; default: up to 8, as memory allows", "N"),
    Flag("queue", "count", "requests that may wait; default: 64", "N", least=0),
    Flag("keep-alive", "count", "seconds an idle connection stays open; default: 75", "S"),
    Flag("allow-host", "texts", "a name by which clients may ask; can be repeated", "NAME"),
    Flag("allow-origin", "texts", "a site whose pages may ask; can be repeated", "ORIGIN"),
    Flag("strict", "off", "refuse fields that are not known, rather than ignore them"),
)
BENCH = (
    Flag("json", "off", "print the figures as JSON"),
    Flag("repeat", "count", "pairs of a decode step and its limit; default: 100", "N"),
    Flag("seconds", "count", "time for a prefill's pairs, at least 3 of them; default: 20", "S"),
)
SHARED = (
    Flag("quiet", "off", "no progress and no notes, only results and errors", also=("-q",)),
    Flag("debug", "off", "print a traceback with an error"),
)
CHAT = (*ANSWER, *SAMPLING, *LOADING)
RUN = (
    Flag("prompt", "text", "answer this and leave; - reads standard input", "TEXT"),
    Flag("json", "off", "print the answer as one line of JSON"),
    *CHAT,
)


def add_flags(parser: argparse.ArgumentParser, flags: Sequence[Flag]) -> None:
    """Add flags to a parser; not given, a value is its default or None, a switch True or False."""
    for flag in flags:
        if flag.kind == "on":
            switch = argparse.BooleanOptionalAction
            parser.add_argument(*flag.spellings, action=switch, default=True, help=flag.explained)
        elif flag.kind == "off":
            parser.add_argument(*flag.spellings, action="store_true", help=flag.explained)
        elif flag.kind == "texts":
            parser.add_argument(
                *flag.spellings,
                action="append",
                default=[],
                metavar=flag.metavar,
                help=flag.explained,
            )
        else:
            parser.add_argument(
                *flag.spellings,
                type=_Reader(flag),
                default=flag.default,
                choices=flag.choices,
                metavar=flag.metavar,
                help=flag.explained,
            )


def read_options(
    arguments: argparse.Namespace, published: "GenerationOptions | None" = None
) -> "GenerationOptions":
    """Return what the flags of an answer and of sampling ask for.

    What no flag says is as `published`, or greedy.

    Raises:
        OptionInvalidError: a value is outside its range.
    """
    from aotlm_runtime.generate.stream import DEFAULT, changed

    names = [flag.attribute for flag in SAMPLING if flag.name != "sampling"]
    asked = {name: getattr(arguments, name, None) for name in (*names, "max_tokens", "stop")}
    given = {name: value for name, value in asked.items() if value not in (None, [])}
    return changed(published or DEFAULT, given)


@dataclass(frozen=True)
class _Reader:
    """Reads a flag's value; argparse prints its sentence when that is wrong."""

    flag: Flag

    def __call__(self, text: str) -> str | int | float:
        return read_value(self.flag, text)


def read_value(flag: Flag, text: str) -> str | int | float:
    """Return the value that `text` is for a flag.

    Raises:
        argparse.ArgumentTypeError: it is no number, or too small.
    """
    if flag.kind == "text":
        return text
    try:
        value = int(text) if flag.kind == "count" else float(text)
    except ValueError:
        value = None
    if value is None or (flag.kind == "count" and value < flag.least):
        wanted = f"a whole number from {flag.least} on" if flag.kind == "count" else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value
