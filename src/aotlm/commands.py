"""What every command of the project shares: help, --debug, and errors as one sentence."""

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

from invoke import Context, Task, task

from aotlm.errors import AotlmError, UsageError
from aotlm_runtime.errors import AotlmRuntimeError

HELP = {
    "model": "Hugging Face id, local folder, GGUF folder or file, or 'demo'",
    "revision": "the commit or branch of a Hugging Face id",
    "dtype": "storage of weights and cache: f16, bf16 or f32",
    "out": "where to write to",
    "force": "replace an existing import",
    "dump_after": "write the IR after this pass, or after 'all'",
    "list_passes": "print the passes in order and stop",
    "dir": "the folder of the model, artifacts/<model>-<dtype>",
    "target": "native, x86-64-v3, x86-64-v4, x86-64-v4+bf16 or the name of a CPU",
    "compress": "pack the archive with zstd",
    "bundle": "a bundle's folder or archive",
    "prompt": "answer this text ('-': stdin) instead of opening the chat",
    "max_tokens": "the most tokens of one answer",
    "raw": "give the prompt as it is, without the chat template",
    "threads": "how many threads to use; default: one for each core",
    "context": "how many tokens to keep; default: the model's, up to 4096",
    "stats": "print speed and memory at the end",
    "first": "a bundle's folder or archive",
    "second": "the other one, in the same form",
    "provenance": "the provenance.json of a bundle",
    "key": "a key in PEM form: private to sign, public to verify",
    "sigstore": "sign with the identity of the workflow that this runs in",
    "identity": "who signed with sigstore: a workflow's or a mail address",
    "identity_provider": "who vouches for the identity; default: GitHub Actions",
    "debug": "show a traceback when something fails",
}


def command(name: str) -> Callable[[Callable[..., Any]], Task]:
    """Make a task of a function: with help, --debug, and errors as one line and an exit code."""

    def wrap(function: Callable[..., Any]) -> Task:
        @functools.wraps(function)
        def body(c: Context, /, debug: bool = False, **words: Any) -> None:
            try:
                code = function(c, **words)
            except (AotlmError, AotlmRuntimeError) as error:
                if debug:
                    traceback.print_exc()
                print(f"error: {error}", file=sys.stderr)
                code = 2 if isinstance(error, UsageError) else 1
            except Exception as error:
                if debug:
                    raise
                text = " ".join(str(error).split())
                print(
                    f"error: unexpected {type(error).__name__}: {text}; "
                    "run it again with --debug and report what it shows",
                    file=sys.stderr,
                )
                code = 1
            except KeyboardInterrupt:
                code = 130
            if code:
                sys.exit(code)

        signature = inspect.signature(function)
        flag = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False)
        parameters = [*signature.parameters.values(), flag]
        body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        known = {word.name: HELP[word.name] for word in parameters if word.name in HELP}
        return task(name=name, help=known, positional=[], auto_shortflags=False)(body)

    return wrap
