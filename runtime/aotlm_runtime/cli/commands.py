"""What each command does. Heavy imports wait until one runs, so that help comes at once."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aotlm_runtime.errors import PromptInvalidError, TextInvalidError

if TYPE_CHECKING:
    from aotlm_runtime.bundle.reader import Bundle
    from aotlm_runtime.generate.stream import GenerationOptions
    from aotlm_runtime.model import Model


def chat(arguments: argparse.Namespace) -> int:
    """Chat until the input ends."""
    with _opened(arguments) as bundle:
        from aotlm_runtime.cli.console import note
        from aotlm_runtime.cli.line_input import open_reader
        from aotlm_runtime.cli.repl import Repl

        model = _load(bundle, arguments, shows_prefill=True)
    conversation = Repl(model, arguments)
    if sys.stdin.isatty():
        note("/help lists commands; Ctrl-C stops an answer, Ctrl-D leaves.")
    conversation.run(open_reader())
    model.wait_until_verified()  # a chat in which nothing was asked has not waited
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Answer the prompt, or chat if there is none."""
    if arguments.prompt is None:
        return chat(arguments)
    from aotlm_runtime.cli.console import finish_note, note, stats_lines, write
    from aotlm_runtime.cli.flags import read_options

    prompt = _read_stdin() if arguments.prompt == "-" else arguments.prompt
    with _opened(arguments) as bundle:
        read_options(arguments)  # what is wrong is told before the model takes time to load
        model = _load(bundle, arguments, shows_prefill=True)
    published = model.published if arguments.sampling == "model" else None
    options = read_options(arguments, published)
    ids = model.encode(prompt, system=arguments.system, raw=arguments.raw)
    if arguments.json:
        print(json.dumps(_record(model, ids, options), ensure_ascii=False))
        return 0
    write(model.stream(ids, options), shows_thinking=arguments.think != "hide")
    note(*finish_note(model), *(stats_lines(model) if arguments.stats else []))
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from aotlm_runtime.cli.serve import serve

    def load() -> "Model":
        with _opened(arguments) as bundle:
            return _load(bundle, arguments)

    return serve(arguments, load)


def inspect(arguments: argparse.Namespace) -> int:
    """Print what the bundle is, after it was verified."""
    from aotlm_runtime.bundle.reader import open_bundle
    from aotlm_runtime.cli.describe import facts, lines

    with open_bundle(arguments.bundle) as bundle:
        _verify(bundle)
        found = {**facts(bundle), "verified": True}
    print(*([json.dumps(found, indent=2)] if arguments.json else lines(found)), sep="\n")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Compare every file with the manifest and, with a key, check the signature."""
    from aotlm_runtime.bundle.reader import open_bundle
    from aotlm_runtime.bundle.signature import verify_with_key

    with open_bundle(arguments.bundle) as bundle:
        signature = "it is not signed"
        if arguments.key is not None:
            with _progress("verifying", bundle.size_bytes, "B") as advance:
                verify_with_key(Path(arguments.bundle), Path(arguments.key), advance)
            signature = f"signed by the key {arguments.key}"
        else:
            _verify(bundle)
            if bundle.is_signed:
                signature = "its signature was not checked: give --key"
        n_files, n_bytes = len(bundle.manifest.files), bundle.size_bytes
        print(
            f"{bundle.name}: {n_files} files, {n_bytes:,} bytes, all as its manifest says; "
            f"{signature}"
        )
    return 0


def perplexity(arguments: argparse.Namespace) -> int:
    """Print the perplexity of a text, and how fast its tokens went through the model."""
    text = _read_stdin() if arguments.file == "-" else _read_text(Path(arguments.file))
    with _opened(arguments) as bundle:
        from aotlm_runtime.generate.perplexity import score

        model = _load(bundle, arguments)
    ids = model.text.encode(text, raw=False)
    with _progress("scoring", len(ids) - 1, "token") as advance:
        found = score(model.session, ids, advance)
    speed = found.n_computed / found.elapsed_seconds
    if arguments.json:
        figures = {
            "perplexity": found.perplexity,
            "n_scored": found.n_scored,
            "tokens_per_second": speed,
        }
        print(json.dumps(figures))
        return 0
    print(
        f"perplexity {found.perplexity:.4f} over {found.n_scored} tokens, "
        f"context {model.session.context_length}; {speed:.1f} tok/s"
    )
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """Measure the bundle beside the machine's limits."""
    from aotlm_runtime.bench.measure import BenchOptions
    from aotlm_runtime.bench.report import measure, to_json, to_markdown
    from aotlm_runtime.cli.console import note

    with _opened(arguments) as bundle:
        model = _load(bundle, arguments)
        given = {"n_pairs": arguments.repeat, "seconds": arguments.seconds}
        options = BenchOptions(**{name: value for name, value in given.items() if value})
        report = measure(bundle, model, options, note)
    print(json.dumps(to_json(report), indent=2) if arguments.json else to_markdown(report))
    return 0


def _record(model: "Model", ids: list[int], options: "GenerationOptions") -> dict[str, object]:
    """Return an answer and its figures, for JSON."""
    pieces = list(model.stream(ids, options))
    last = model.last
    if last is None:
        raise AssertionError("a stream that ended leaves its figures")
    thinking = "".join(piece.text for piece in pieces if piece.is_thinking)
    return {
        "text": "".join(piece.text for piece in pieces if not piece.is_thinking),
        **({"thinking": thinking} if thinking else {}),
        "ids": [token.id for piece in pieces for token in piece.tokens],
        "finish_reason": last.finish,
        "prompt_tokens": last.prompt_tokens,
        "reused_tokens": last.prompt_tokens - last.prefilled,
        "generated_tokens": last.generated,
        "timings": {
            "verify_seconds": model.times.verify_seconds,
            "load_seconds": model.times.load_seconds,
            "prefill_seconds": last.prefill_seconds,
            "decode_seconds": last.decode_seconds,
        },
    }


def _read_stdin() -> str:
    return _decode(sys.stdin.buffer.read(), "standard input").removesuffix("\n")


def _read_text(path: Path) -> str:
    try:
        return _decode(path.read_bytes(), str(path))
    except OSError as error:
        raise TextInvalidError(
            f"cannot read {path}: {error.strerror}; name a file of plain text"
        ) from error


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptInvalidError(
            f"{name} is not UTF-8 at byte {error.start}; convert it first"
        ) from error


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator["Bundle"]:
    """Open the bundle, whose verification begins here, beside what takes time to import."""
    from aotlm_runtime.bundle.reader import open_bundle

    with open_bundle(arguments.bundle) as bundle:
        if arguments.verify:
            bundle.begin_verification(arguments.threads)
        else:
            from aotlm_runtime.cli.console import note

            note(
                "note: the weights are not verified, as --no-verify asks; "
                "do that only with a bundle that you have just built"
            )
        yield bundle


def _load(
    bundle: "Bundle", arguments: argparse.Namespace, *, shows_prefill: bool = False
) -> "Model":
    from aotlm_runtime.bundle.verification import in_silence
    from aotlm_runtime.model import load_opened

    def reading(n_tokens: int) -> contextlib.AbstractContextManager[Callable[[int], object]]:
        return _progress("reading the prompt", n_tokens, "token")

    return load_opened(
        bundle,
        threads=arguments.threads,
        context=arguments.context,
        verify=arguments.verify,
        display=lambda n_bytes: _progress("verifying", n_bytes, "B"),
        prefill_display=reading if shows_prefill else in_silence,
    )


def _verify(bundle: "Bundle") -> None:
    with _progress("verifying", bundle.size_bytes, "B") as advance:
        bundle.verify(advance)


@contextlib.contextmanager
def _progress(what: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Show a bar on a terminal if it takes more than a moment; nothing elsewhere.

    Yields what is called with each part that is done.
    """
    from aotlm_runtime.cli.console import is_quiet

    if is_quiet() or not sys.stderr.isatty():
        yield lambda n_done: None
        return
    from tqdm import tqdm  # takes longer to load than a token to decode

    with tqdm(
        total=total,
        desc=what,
        unit=unit,
        unit_scale=True,
        leave=False,
        delay=0.5,
        file=sys.stderr,
    ) as bar:
        yield bar.update
