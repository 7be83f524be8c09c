"""A loaded bundle: generates text, keeps a chat."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from aotlm_runtime.bundle.manifest import Manifest, Sampling
from aotlm_runtime.bundle.reader import Bundle, open_bundle
from aotlm_runtime.bundle.verification import Display, Verification, in_silence
from aotlm_runtime.chat import Chat
from aotlm_runtime.compiled.leases import Leases
from aotlm_runtime.compiled.library import CompiledModel, choose_library
from aotlm_runtime.compiled.session import Session
from aotlm_runtime.errors import (
    ManifestInvalidError,
    OptionInvalidError,
    WeightsInvalidError,
)
from aotlm_runtime.generate.loop import FinishReason, generate
from aotlm_runtime.generate.sampling import Sampler
from aotlm_runtime.generate.stream import (
    DEFAULT,
    GenerationOptions,
    TextDelta,
    changed,
    stream_text,
)
from aotlm_runtime.generate.values import check_whole, token_ids
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

    `prefill_seconds` lead to the first token, without waiting for the verification of the weights;
    `decode_seconds` to all others.
    """

    prompt_tokens: int
    prefilled: int
    generated: int
    prefill_seconds: float
    decode_seconds: float
    finish: FinishReason | None


@dataclass(frozen=True)
class LoadTimes:
    """Seconds that opening a bundle took; it is verified beside loading and the first prefill.

    `verify_seconds` grow until that is over, and are None where the weights are not verified.
    """

    verify_seconds: float | None
    load_seconds: float


class Model:
    """A bundle in memory. Any number of answers can be in the making, also in several threads.

    Each has a session of its own, the first one `session`; their calls take turns, so each gets the
    bits that it gets alone. `last` tells what the answer took that ended latest; None before the
    first. `vocabulary` is one more than the largest id that has both text and an embedding.
    `published` are the options that the model's publisher recommends.
    """

    def __init__(
        self,
        manifest: Manifest,
        session: Session,
        text: Tokenizer,
        verification: Verification | None = None,
        load_seconds: float = 0,
    ) -> None:
        self.manifest = manifest
        self.published = _published(manifest)
        self.session = session
        self._leases = Leases(session)
        self.text = text
        self.verification = verification
        self._load_seconds = load_seconds
        self.last: GenerationStats | None = None
        self._eos_ids = frozenset(manifest.model.eos_token_ids)
        self.vocabulary = min(text.vocabulary, manifest.model.vocab_size)

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
    def times(self) -> LoadTimes:
        """What loading took."""
        verify_seconds = self.verification.seconds if self.verification else None
        return LoadTimes(verify_seconds, self._load_seconds)

    def wait_until_verified(self) -> None:
        """Return when the whole bundle was compared with its manifest, if that was asked for.

        Raises:
            FileChangedError: a file is damaged.
        """
        if self.verification:
            self.verification.wait()

    def check_damage(self) -> None:
        """Return at once, also while the bundle is being verified.

        Raises:
            FileChangedError: it was verified, and a file is damaged.
        """
        if self.verification:
            self.verification.check()

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
            PromptInvalidError: an id is no whole number, or not the model's; or there are none.
            FileChangedError: the weights are damaged; nothing was yielded then.
        """
        known = token_ids(ids, self.vocabulary)
        with self._leases.lend(known) as session:
            yield from self._answer(session, known, options)

    def _answer(
        self, session: Session, ids: list[int], options: GenerationOptions
    ) -> Generator[TextDelta, None, None]:
        started, waited = time.perf_counter(), session.waited_seconds
        prefilled = len(ids) - session.rewind_to_common_prefix(ids)
        logits = session.prefill(ids[-prefilled:])
        first = time.perf_counter()
        waited = session.waited_seconds - waited
        tokens = generate(
            session,
            logits,
            Sampler(options.sampling, self.vocabulary),
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
                prefill_seconds=first - started - waited,
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
    display: Display = in_silence,
) -> Model:
    """Load a bundle: a folder, a `.tar` or a `.tar.zst`.

    `threads` is by default the physical cores that this process may use; `context` the smaller of
    the model's and 4096.

    What runs or is parsed is verified before that; the weights are verified meanwhile and beside
    the first prefill, and no logits and no text come before the end. `display` shows it to those
    who wait. Without `verify`, the weights are not compared with their digests.

    Raises:
        AotlmError: a subclass that says what is wrong.
    """
    with open_bundle(bundle) as opened:
        return load_opened(
            opened,
            threads=threads,
            context=context,
            verify=verify,
            display=display,
        )


def load_opened(
    bundle: Bundle,
    *,
    threads: int | None = None,
    context: int | None = None,
    verify: bool = True,
    display: Display = in_silence,
    prefill_display: Display = in_silence,
) -> Model:
    """Load an open bundle, which may be closed afterwards; see `load`.

    `prefill_display` shows the tokens of long prompts, while they are computed.
    """
    manifest = bundle.manifest
    length = _context(context, manifest.model.context_length)
    n_threads = _threads(threads)
    library = choose_library(manifest.libraries, cpu.cpu_features())
    started = time.perf_counter()
    verification = bundle.begin_verification(n_threads) if verify else None
    compiled = CompiledModel(bundle.read(library.shared), manifest.abi, library.prefix)
    files = {path.rpartition("/")[2]: bundle.read(path) for path in manifest.tokenizer_files}
    text = Tokenizer(files)
    session = Session(
        compiled,
        manifest.abi,
        _map_weights(bundle, verification),
        manifest.model.vocab_size,
        length,
        n_threads,
        gate=partial(verification.wait, display) if verification else None,
        display=prefill_display,
    )
    return Model(manifest, session, text, verification, time.perf_counter() - started)


def _published(manifest: Manifest) -> GenerationOptions:
    """Return what the publisher recommends; greedy, where they say nothing.

    Raises:
        ManifestInvalidError: a value is outside its range.
    """
    said = manifest.model.sampling or Sampling()
    values = {name: value for name, value in asdict(said).items() if value is not None}
    try:
        return changed(DEFAULT, values)
    except OptionInvalidError as error:
        raise ManifestInvalidError(
            f"the bundle's manifest was edited, of its sampling {error}, or get the bundle again"
        ) from error


def _map_weights(bundle: Bundle, verification: Verification | None) -> NDArray[np.int8]:
    try:
        return bundle.map_weights()
    except WeightsInvalidError:
        if verification:  # damage explains it, where there is any
            verification.wait()
        raise


def _context(wanted: int | None, longest: int) -> int:
    if wanted is None:
        return min(longest, DEFAULT_CONTEXT)
    check_whole("context", wanted)
    if not 1 <= wanted <= longest:
        raise OptionInvalidError(
            f"a context of {wanted} tokens is not possible: the model takes 1 to {longest}; "
            "choose a number between them"
        )
    return wanted


def _threads(wanted: int | None) -> int:
    if wanted is None:
        return cpu.default_threads()
    check_whole("threads", wanted)
    if not 1 <= wanted <= MAX_THREADS:
        raise OptionInvalidError(
            f"{wanted} threads are not possible: the thread pool takes 1 to {MAX_THREADS}; "
            "choose a number between them"
        )
    return wanted
