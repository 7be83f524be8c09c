"""The words behind `inv`, read before Invoke reads them: wrong ones are told as `aotlm` does."""

import copy
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from invoke import Collection, ParseError, Program
from invoke.parser import Parser, ParserContext

from aotlm_runtime.cli.command_line import near

_UNKNOWN = re.compile(r"No idea what '(.*)' is!", re.DOTALL)
_VALUE = re.compile(r"Flag <Argument: (\S+).*> needed value and was not given one!", re.DOTALL)
_USAGE = 2


def check_command_line(tasks: Collection) -> None:
    """Check this process's words, if it is Invoke's; see `check_words`.

    Invoke has no hook for what its parser refuses, but loads the tasks before it parses for them.
    """
    module = getattr(sys.modules["__main__"], "__spec__", None)
    is_script = Path(sys.argv[0]).name in ("inv", "invoke")
    if is_script or (module is not None and module.name == "invoke.__main__"):
        check_words(tasks, sys.argv[1:])


def check_words(tasks: Collection, words: Sequence[str]) -> None:
    """Check words with Invoke's own parser: its own flags first, then the tasks with theirs.

    Raises:
        SystemExit: they are wrong; what is wrong was printed.
    """
    contexts = copy.deepcopy(tasks).to_contexts()  # of which a task can give its help only once
    program = Program().initial_context
    names = [context.name for context in contexts if context.name]
    try:
        own = Parser(initial=program, ignore_unknown=True).parse_argv(list(words))
        Parser(contexts=contexts, initial=program).parse_argv(own.unparsed)
    except ParseError as error:
        _refuse(_sentence(error, names, program))
    asked = own[0].args["help"].value
    if isinstance(asked, str) and asked not in names:
        _refuse(_no_command(asked, names))


def _sentence(error: ParseError, names: Sequence[str], program: ParserContext) -> str:
    """Return what Invoke says, with the word that was meant or where to look for it."""
    text = str(error)
    task = error.context.name if error.context else None
    place, where = (f" of {task}", f"inv --help {task}") if task else ("", "inv --help")
    if value := _VALUE.fullmatch(text):
        return f"the flag --{value[1]}{place} needs a value; {where} explains it"
    unknown = _UNKNOWN.fullmatch(text)
    if unknown is None:
        return f"{text[:1].lower()}{text[1:].rstrip('!.')}; {where} explains it"
    if not unknown[1].startswith("-"):
        return _no_command(unknown[1], names)
    context = error.context or program
    flags = [*context.flags, *context.inverse_flags]
    return f"there is no flag {unknown[1]}{place}{near(unknown[1], flags, f'{where} lists them')}"


def _no_command(word: str, names: Sequence[str]) -> str:
    return f"there is no command {word!r}{near(word, names, 'inv --list names them')}"


def _refuse(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(_USAGE)
