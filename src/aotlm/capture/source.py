"""Where a model comes from: the demo, a folder, a GGUF file or a hub id, all behind one class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig, AutoTokenizer, PretrainedConfig
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from aotlm.capture.demo import demo_gguf
from aotlm.capture.gguf_config import harmless_keys, key_problems
from aotlm.capture.gguf_tokenizer import correct, has_tokenizer
from aotlm.capture.sampling import (
    GENERATION_CONFIG,
    Published,
    generation_keys,
    published_gguf_sampling,
    published_sampling,
)
from aotlm.capture.source_gguf import (
    GgufTable,
    gguf_names,
    gguf_table_config,
    gguf_tensors,
    is_later_part,
    read_gguf_table,
)
from aotlm.capture.source_hub import (
    DEMO,
    card_licence,
    check_model,
    fetch_from_hub,
    first_line,
)
from aotlm.capture.source_safetensors import (
    safetensors_left_out,
    safetensors_names,
    safetensors_tensors,
)
from aotlm.capture.tensors import StoredTensor, TensorSource, resolve, skeleton
from aotlm.capture.unused import left_out, named
from aotlm.errors import AotlmError

LOCAL: Final = "local"
CONFIG: Final = "config.json"
CAUSAL: Final = ("ForCausalLM", "LMHeadModel")
TOKENIZER_FILES: Final = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
    "spiece.model",
)  # fmt: skip


@dataclass(frozen=True)
class ModelSource:
    """A model that can be imported.

    `source` is a hub id, "demo" or "local"; `folder` and `gguf_file` say where its files lie;
    `checkpoint` holds its tensors by the checkpoint's own names; `notes` say what else is there and
    not used. With `accepts_unused`, tensors that nothing uses are no error; `template` names the
    chat template, where the model's default one is not wanted.
    """

    source: str
    revision: str | None
    licence: str | None
    folder: Path
    gguf_file: str | None
    config: PretrainedConfig
    checkpoint: Mapping[str, StoredTensor]
    notes: tuple[str, ...] = ()
    accepts_unused: bool = False
    template: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Return what transformers' loaders need to know besides the folder."""
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        return options | ({"gguf_file": self.gguf_file} if self.gguf_file else {})

    @cached_property
    def gguf(self) -> GgufTable | None:
        """What the GGUF file says before its data; None of a model in safetensors."""
        return read_gguf_table(self.folder / self.gguf_file) if self.gguf_file else None

    @property
    def tensors(self) -> TensorSource:
        """The tensors by the module tree's names.

        Raises:
            AotlmError: lists what is missing or has another shape than the configuration says, or
                what is there and not used.
        """
        return self._resolved[0]

    @property
    def not_used(self) -> list[str]:
        """A line for each kind of thing that the model has and that is not used; see `tensors`."""
        return [*self.notes, *self._resolved[1], *self.published.notes]

    @cached_property
    def _resolved(self) -> tuple[TensorSource, list[str]]:
        model = skeleton(self.config)
        if self.gguf:
            names = gguf_names(self.gguf, model, self.config)
        else:
            names = safetensors_names(model, self.checkpoint)
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        used = [name for name in sorted(self.checkpoint, reverse=True)
                if names.get(name) in parameters]  # fmt: skip
        found = resolve(model, {names[name]: self.checkpoint[name] for name in used})
        rest = left_out(
            model, self.checkpoint, used,
            is_gguf=bool(self.gguf_file), accepts_unused=self.accepts_unused,
        )  # fmt: skip
        return found, rest

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """The generation configuration; empty where the model has none."""
        path = self.folder / GENERATION_CONFIG
        return {} if self.gguf_file or not path.is_file() else _read_json(path)

    @cached_property
    def published(self) -> Published:
        """How the publisher has answers made, and what of that is not used.

        As in transformers, a config.json says it where there is no generation_config.json.

        Raises:
            AotlmError: a value cannot be.
        """
        if self.gguf:
            return published_gguf_sampling(self.gguf.metadata, str(self.gguf_file))
        if (self.folder / GENERATION_CONFIG).is_file():
            return published_sampling(self.generation_config)
        config = _read_json(self.folder / CONFIG)
        said = {key: config[key] for key in generation_keys() if key in config}
        return published_sampling(said, CONFIG)

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; None where the model has no tokenizer.

        Raises:
            AotlmError: transformers cannot load it, or it cuts text in a way that is unknown.
        """
        here = any((self.folder / name).is_file() for name in TOKENIZER_FILES)
        if not (has_tokenizer(self.gguf.metadata) if self.gguf else here):
            return None
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.folder, **self.options)
            if self.gguf:
                correct(tokenizer, self.gguf.metadata)
            return tokenizer
        except Exception as error:  # tokenizers fail in many ways
            raise AotlmError(
                f"the tokenizer of {self.folder} cannot be loaded: {first_line(error)}; fetch the "
                "model again"
            ) from error


def open_model(
    model: str, revision: str | None = None, *, accepts_unused: bool = False,
    template: str | None = None,
) -> ModelSource:  # fmt: skip
    """Find a model: `demo`, a folder or .gguf file on this machine, or a hub id.

    With `accepts_unused`, what a checkpoint holds and nothing uses is listed and no error;
    `template` is the name of a chat template that is wanted instead of the default.

    Raises:
        UsageError: a revision of something that has none, or a word that names nothing.
        AotlmError: the model cannot be read, or is not a causal language model.
    """
    check_model(model, revision)
    found = _found(model, revision, accepts_unused)
    return replace(found, accepts_unused=accepts_unused, template=template)


def _found(model: str, revision: str | None, accepts_unused: bool) -> ModelSource:
    path = Path(model).expanduser()
    if model == DEMO:
        return _open_gguf(DEMO, demo_gguf(), accepts_unused)
    if path.is_dir():
        return _open_folder(LOCAL, None, path, accepts_unused)
    if path.is_file():
        return _open_gguf(LOCAL, path, accepts_unused)
    folder = fetch_from_hub(model, revision)
    return _open_folder(model, folder.name, folder, accepts_unused)


def _open_folder(
    source: str, revision: str | None, folder: Path, accepts_unused: bool
) -> ModelSource:
    ggufs = [path for path in sorted(folder.glob("*.gguf")) if not is_later_part(path)]
    if ggufs and not list(folder.glob("*.safetensors")):
        if len(ggufs) > 1:
            names = ", ".join(path.name for path in ggufs)
            raise AotlmError(f"{folder} holds several GGUF files ({names}); name one of them")
        return _open_gguf(source, ggufs[0], accepts_unused)
    config = _config(folder)
    checkpoint = safetensors_tensors(folder)
    notes = tuple(safetensors_left_out(folder))
    return ModelSource(
        source, revision, card_licence(folder), folder, None, config, checkpoint, notes
    )


def _open_gguf(source: str, path: Path, accepts_unused: bool) -> ModelSource:
    table = read_gguf_table(path)
    notes = _key_notes(table, accepts_unused)
    config = _causal(path, lambda: gguf_table_config(table))
    checkpoint = gguf_tensors(table, config)
    licence = table.metadata.get("general.license")
    return ModelSource(source, None, licence, path.parent, path.name, config, checkpoint, notes)


def _key_notes(table: GgufTable, accepts_unused: bool) -> tuple[str, ...]:
    """Say which keys of the metadata are not used; refuse those that no table knows."""
    harmless = harmless_keys(table.metadata)
    notes = [f"not used: {named(harmless)}: they change no number"] if harmless else []
    problems = key_problems(table.metadata)
    if problems and not accepts_unused:
        raise AotlmError(
            f"{table.path} has metadata that is not known here: {named(problems)}; it may change "
            "what the model says, so import its safetensors, or go without it with --accept-unused"
        )
    return (*notes, *([f"not used: {named(problems)}: accepted with --accept-unused"]
                      if problems else []))  # fmt: skip


def _config(folder: Path) -> PretrainedConfig:
    path = folder / CONFIG
    if not path.is_file():
        raise AotlmError(f"{folder} has no config.json and no .gguf file; name a model's folder")
    kind = _read_json(path).get("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        raise AotlmError(
            f"{path} says model_type {kind!r}, which transformers does not know; models with "
            "code of their own are not supported"
        )
    config = _causal(
        path,
        lambda: AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True),
    )
    method = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    if method:
        raise AotlmError(
            f"{folder} is quantised ({method}); import the model that it was made from"
        )
    return config


def _causal(path: Path, load: Callable[[], PretrainedConfig]) -> PretrainedConfig:
    """Load the configuration in `path`, which must be a causal language model's."""
    try:
        config = load()
    except AotlmError:
        raise
    except Exception as error:  # each model's configuration checks itself in its own way
        raise AotlmError(
            f"transformers cannot read {path}: {first_line(error)}; fetch the model again"
        ) from error
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")
    names = config.architectures or [name]
    if not str(name).endswith(CAUSAL) or not any(known.endswith(CAUSAL) for known in names):
        shown = ", ".join(filter(None, names)) or config.model_type
        raise AotlmError(
            f"{path} is of a {shown}, not of a causal language model (…ForCausalLM); choose "
            "another model"
        )
    config.architectures = names
    return config


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AotlmError(f"{path} is not JSON ({error}); fetch the model again") from error
    if not isinstance(value, dict):
        raise AotlmError(f"{path} holds no JSON object; fetch the model again")
    return value
