"""The conversation: messages are answered, lines that start with a slash are commands."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aotlm_runtime.chat import Chat
from aotlm_runtime.cli.command_line import Terminated
from aotlm_runtime.cli.console import finish_note, note, stats_lines, tell, write
from aotlm_runtime.cli.flags import ANSWER, SAMPLING, Flag, read_options, read_value
from aotlm_runtime.cli.line_input import Read, read_message
from aotlm_runtime.errors import AotlmError, FileChangedError, OptionInvalidError
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta

if TYPE_CHECKING:
    from aotlm_runtime.model import Model

_SETTABLE = {flag.name: flag for flag in (*ANSWER, *SAMPLING) if flag.name not in ("raw", "system")}
HELP = """\
/help              these lines
/reset             forget the conversation
/system [TEXT]     what the model is told first; without TEXT, nothing
/set [NAME VALUE]  change an option, as the flag --NAME does; without VALUE, back to its default
/stats             figures of the latest answer
/save FILE         write the conversation to a file
/load FILE         go on with a conversation from a file
/exit              leave, as Ctrl-D does
Three double quotes start and end a message of several lines; on a terminal, Alt-Enter breaks a
line. Ctrl-C stops an answer; with nothing typed, it leaves."""


class Repl:
    """A chat, or with `raw` and without a template texts that are continued, one by one."""

    def __init__(self, model: "Model", arguments: argparse.Namespace) -> None:
        """`arguments` hold the flags of CHAT, which the user can change.

        Raises:
            OptionInvalidError: a value is outside its range.
        """
        self._model = model
        self._arguments = arguments
        self._options = self._read_options()
        self._chat: Chat | None = None
        if not arguments.raw and model.text.template is not None:
            self._chat = model.chat(arguments.system)
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda words: tell(HELP),
            "/reset": lambda words: self._needed_chat().reset(),
            "/system": self._set_system,
            "/set": self._set,
            "/stats": lambda words: tell(*stats_lines(self._model) or ["nothing was answered yet"]),
            "/save": lambda words: self._needed_chat().save(_path(words)),
            "/load": lambda words: self._needed_chat().load(_path(words)),
        }

    def run(self, read: Read) -> None:
        """Answer message after message until the input ends or the user leaves."""
        try:
            while (message := read_message(read)) is not None and message.strip() != "/exit":
                if message.strip():
                    self._handle(message)
        except Terminated:
            raise
        except KeyboardInterrupt:
            tell("")

    def _handle(self, message: str) -> None:
        word, _, rest = message.strip().partition(" ")
        try:
            if word in self._commands:
                self._commands[word](rest.strip())
            elif message.startswith("/") and word[1:].isalpha():
                raise OptionInvalidError(
                    f"there is no command {word}; /help lists them, "
                    "and a message can start with a space"
                )
            else:
                self._answer(message)
        except FileChangedError:  # nothing will be answered
            raise
        except AotlmError as error:
            tell(f"error: {error}")

    def _answer(self, message: str) -> None:
        before = self._chat.n_left_out if self._chat else 0
        try:
            write(self._pieces(message), shows_thinking=self._arguments.think != "hide")
        except Terminated:
            raise
        except KeyboardInterrupt:
            note("(stopped)")
            return
        if self._chat and self._chat.n_left_out > before:
            note(
                f"note: the first {self._chat.n_left_out} messages are left out from here on, to "
                f"stay within the context of {self._model.session.context_length} tokens"
            )
        note(*finish_note(self._model))
        if self._arguments.stats:
            note(*stats_lines(self._model))

    def _pieces(self, message: str) -> Iterator[TextDelta]:
        if self._chat is not None:
            return self._chat.send(message, self._options)
        ids = self._model.encode(message, raw=self._arguments.raw)
        return self._model.stream(ids, self._options)

    def _needed_chat(self) -> Chat:
        if self._chat is None:
            raise OptionInvalidError(
                "texts are continued one by one, without a chat template, so there is no "
                "conversation; start without --raw, with a model that has a template"
            )
        return self._chat

    def _set_system(self, words: str) -> None:
        self._needed_chat().system = words or None

    def _set(self, words: str) -> None:
        name, _, text = words.partition(" ")
        if not name:
            tell(*(f"{name} {_shown(self._value(flag))}" for name, flag in _SETTABLE.items()))
            return
        if name not in _SETTABLE:
            raise OptionInvalidError(
                f"there is no option {name!r}; choose from {', '.join(_SETTABLE)}"
            )
        flag = _SETTABLE[name]
        before = self._value(flag)
        setattr(self._arguments, flag.attribute, _parse(flag, text.strip(), before))
        try:
            self._options = self._read_options()
        except OptionInvalidError:
            setattr(self._arguments, flag.attribute, before)
            raise

    def _read_options(self) -> GenerationOptions:
        is_greedy = self._arguments.sampling == "greedy"
        return read_options(self._arguments, None if is_greedy else self._model.published)

    def _value(self, flag: Flag) -> object:
        return getattr(self._arguments, flag.attribute)


def _parse(flag: Flag, text: str, before: object) -> object:
    """Return the value that `text` gives a flag; without text its default.

    Raises:
        OptionInvalidError: the flag cannot have that value.
    """
    if flag.kind == "texts":
        return [*before, text] if text and isinstance(before, list) else []
    choices = ("on", "off") if flag.kind == "on" else flag.choices
    if not text:
        return True if flag.kind == "on" else None
    if choices and text not in choices:
        raise OptionInvalidError(f"{flag.name} cannot be {text!r}; choose {' or '.join(choices)}")
    if flag.kind == "on":
        return text == "on"
    try:
        return read_value(flag, text)
    except argparse.ArgumentTypeError as error:
        raise OptionInvalidError(f"{flag.name}: {error}; try another") from error


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " ".join(map(repr, value)) or "(none)"
    return "(default)" if value is None else str(value)


def _path(words: str) -> Path:
    if not words:
        raise OptionInvalidError("no file was named; give one behind the command")
    return Path(words).expanduser()
