"""A loaded bundle: generates text, keeps a chat."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotlm_runtime.bundle.manifest import Manifest
from aotlm_runtime.bundle.reader import Bundle, Progress, open_bundle
from aotlm_runtime.chat import Chat
from aotlm_runtime.compiled.library import CompiledModel, choose_library
from aotlm_runtime.compiled.session import Session
from aotlm_runtime.errors import OptionInvalidError
from aotlm_runtime.generate.loop import FinishReason, generate
from aotlm_runtime.generate.sampling import Sampler
from aotlm_runtime.generate.stream import DEFAULT, GenerationOptions, TextDelta, stream_text
from aotlm_runtime.host import cpu
from aotlm_runtime.text.stop_strings import StopStrings
from aotlm_runtime.text.thinking import Splitter
from aotlm_runtime.text.tokenizer import Tokenizer

# A cache for a model's full context can need more memory than its weights; this is the default.
DEFAULT_CONTEXT = 4096

# The size of the compiled library's thread pool.
MAX_THREADS = 256


@dataclass(frozen=True)
class GenerationStats:
    """What an answer took. `prefilled` of the `prompt_tokens` were computed, the rest reused.

    `prefill_seconds` lead to the first token; `decode_seconds` to all others.
    """

    prompt_tokens: int
    prefilled: int
    generated: int
    prefill_seconds: float
    decode_seconds: float
    finish: FinishReason | None


@dataclass(frozen=True)
class LoadTimes:
    """Seconds that opening a bundle took; it is verified and loaded at the same time."""

    verify_seconds: float
    load_seconds: float


class Model:
    """A bundle in memory, with one sequence of tokens.

    `last` tells what the latest answer took; None before the first.
    """

    def __init__(
        self,
        manifest: Manifest,
        session: Session,
        text: Tokenizer,
        times: LoadTimes = LoadTimes(0, 0),
    ) -> None:
        self.manifest = manifest
        self.session = session
        self.text = text
        self.times = times
        self.last: GenerationStats | None = None
        self._eos_ids = frozenset(manifest.model.eos_token_ids)
        self._vocabulary = min(text.vocabulary, manifest.model.vocab_size)

    def generate(
        self, prompt: str, options: GenerationOptions = DEFAULT, *, raw: bool = False
    ) -> Generator[str, None, None]:
        """Yield the answer to `prompt` in pieces of whole characters, without thinking.

        With `raw`, and for models without a chat template, the model continues the prompt.

        Raises:
            ContextExceededError: the prompt is longer than the context.
        """
        with closing(self.stream(self.encode(prompt, raw=raw), options)) as answer:
            for piece in answer:
                if piece.text and not piece.is_thinking:
                    yield piece.text

    def encode(self, prompt: str, *, system: str | None = None, raw: bool = False) -> list[int]:
        """Return the ids of a prompt; see `generate`.

        Raises:
            OptionInvalidError: there is a system message, but no template to put it in.
        """
        if not raw and self.text.template is not None:
            first = [] if system is None else [{"role": "system", "content": system}]
            return self.encode_chat([*first, {"role": "user", "content": prompt}])
        if system is not None:
            raise OptionInvalidError(
                "a system message needs a chat template, but there is none in use; "
                "put its words into the prompt"
            )
        return self.text.encode(prompt, raw=raw)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of messages in the model's chat template.

        Raises:
            TemplateFailedError: the template refuses them.
        """
        return self.text.encode_chat(messages)

    @property
    def context_length(self) -> int:
        """The tokens that prompt and answer may have together."""
        return self.session.context_length

    def chat(self, system: str | None = None) -> Chat:
        """Start a chat; the cache is shared with whatever else the model does."""
        return Chat(self, system)

    def stream(
        self, ids: Sequence[int], options: GenerationOptions = DEFAULT
    ) -> Generator[TextDelta, None, None]:
        """Yield what comes after a prompt of token ids; only ids that are not cached are computed.

        Raises:
            ContextExceededError: the prompt is longer than the context.
        """
        started = time.perf_counter()
        prefilled = len(ids) - self.session.rewind_to_common_prefix(ids)
        logits = self.session.prefill(ids[-prefilled:])
        first = time.perf_counter()
        tokens = generate(
            self.session,
            logits,
            Sampler(options.sampling, self._vocabulary),
            eos_ids=self._eos_ids,
            max_tokens=options.max_tokens,
            n_logprobs=options.n_logprobs,
        )
        splitter = self.text.splitter(ids) if options.splits_thinking else Splitter(None)
        answer = _Ending(
            stream_text(tokens, self.text.detokenizer(), splitter, StopStrings(options.stop))
        )
        generated = 0
        try:
            for piece in answer:
                generated += len(piece.tokens)
                yield piece
        finally:
            self.last = GenerationStats(
                prompt_tokens=len(ids),
                prefilled=prefilled,
                generated=generated,
                prefill_seconds=first - started,
                decode_seconds=time.perf_counter() - first,
                finish=answer.reason,
            )


class _Ending:
    """A generator of pieces that remembers why it ended; None while it has not."""

    def __init__(self, answer: Generator[TextDelta, None, FinishReason]) -> None:
        self.reason: FinishReason | None = None
        self._answer = answer

    def __iter__(self) -> Iterator[TextDelta]:
        self.reason = yield from self._answer


def load(
    bundle: str | Path,
    *,
    threads: int | None = None,
    context: int | None = None,
    verify: bool = True,
    progress: Progress | None = None,
) -> Model:
    """Load a bundle: a folder, a `.tar` or a `.tar.zst`.

    `threads` is by default the physical cores that this process may use; `context` the smaller of
    the model's and 4096. Without `verify`, digests of the weights are not compared.

    Raises:
        AotlmError: a subclass that says what is wrong.
    """
    with open_bundle(bundle) as opened:
        return load_opened(
            opened,
            threads=threads,
            context=context,
            verify=verify,
            progress=progress,
        )


def load_opened(
    bundle: Bundle,
    *,
    threads: int | None = None,
    context: int | None = None,
    verify: bool = True,
    progress: Progress | None = None,
) -> Model:
    """Load an open bundle, which may be closed afterwards; see `load`."""
    manifest = bundle.manifest
    length = _context(context, manifest.model.context_length)
    n_threads = _threads(threads)
    library = choose_library(manifest.libraries, cpu.cpu_features())
    started = time.perf_counter()
    # Hashing takes one core; reading the tokenizer meanwhile takes another. What is read here is
    # compared with its own digest, and the weights are not touched before the block ends.
    with ThreadPoolExecutor(1) as pool:
        verified = pool.submit(_verify, bundle, progress) if verify else None
        compiled = CompiledModel(bundle.read(library.shared), manifest.abi, library.prefix)
        files = {path.rpartition("/")[2]: bundle.read(path) for path in manifest.tokenizer_files}
        text = Tokenizer(files)
        session = Session(
            compiled,
            manifest.abi,
            bundle.map_weights(),
            manifest.model.vocab_size,
            length,
            n_threads,
        )
        loaded = time.perf_counter() - started
        times = LoadTimes(verified.result() if verified else 0, loaded)
    return Model(manifest, session, text, times)


def _verify(bundle: Bundle, progress: Progress | None) -> float:
    """Verify a bundle and return the seconds that it took."""
    started = time.perf_counter()
    bundle.verify(progress or (lambda n_bytes: None))
    return time.perf_counter() - started


def _context(wanted: int | None, longest: int) -> int:
    if wanted is None:
        return min(longest, DEFAULT_CONTEXT)
    if not 1 <= wanted <= longest:
        raise OptionInvalidError(
            f"a context of {wanted} tokens is not possible: the model takes 1 to {longest}; "
            "choose a number between them"
        )
    return wanted


def _threads(wanted: int | None) -> int:
    if wanted is None:
        return cpu.default_threads()
    if not 1 <= wanted <= MAX_THREADS:
        raise OptionInvalidError(
            f"{wanted} threads are not possible: the thread pool takes 1 to {MAX_THREADS}; "
            "choose a number between them"
        )
    return wanted
