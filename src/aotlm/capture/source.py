"""Where a model comes from: the demo, a folder, a GGUF file or a hub id, all behind one class."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from aotlm.capture import demo
from aotlm.capture.tensors import (
    StoredTensor,
    TensorSource,
    gguf_tensors,
    resolve_names,
    safetensors_tensors,
)
from aotlm.errors import AotlmError

HUB_PATTERNS: Final = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "README.md"]


@dataclass(frozen=True)
class ModelSource:
    """A model that can be imported.

    `source` is a hub id, "demo" or "local"; `folder` and `gguf_file` say where its files lie.
    """

    source: str
    revision: str | None
    licence: str | None
    folder: Path
    gguf_file: str | None
    config: PretrainedConfig
    tensors: TensorSource

    @property
    def _options(self) -> dict[str, Any]:
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}

    def generation_config(self) -> GenerationConfig | None:
        """Return the model's generation configuration, None where it has none."""
        if not (self.folder / "generation_config.json").is_file() or self.gguf_file:
            return None
        return GenerationConfig.from_pretrained(self.folder)

    def tokenizer(self) -> Any:
        """Return the transformers tokenizer, None where the model has no tokenizer files."""
        from transformers import AutoTokenizer

        names = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
        if not self.gguf_file and not any((self.folder / name).is_file() for name in names):
            return None
        try:
            return AutoTokenizer.from_pretrained(self.folder, **self._options)
        except (ValueError, OSError, KeyError) as error:
            raise AotlmError(
                f"the tokenizer of {self.source} cannot be loaded: {_first_line(error)}; download "
                "the model again"
            ) from error

    def reference(self) -> torch.nn.Module:
        """Return the model as transformers loads it itself: f32, eager attention."""
        model = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="eager", **self._options
        )
        return model.eval().requires_grad_(False)


def open_model(model: str, revision: str | None = None) -> ModelSource:
    """Find a model: `demo`, a folder or .gguf file on this machine, or a hub id.

    Raises:
        AotlmError: it is not there, not readable, not a causal LM, or its tensors do not fit.
    """
    if model == "demo":
        path = demo.demo_gguf()
        return _opened("demo", None, demo.LICENCE, path.parent, path.name)
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise AotlmError(f"{path} is a file but no .gguf; name the model's folder instead")
        return _opened("local", None, None, path.parent, path.name)
    if path.is_dir():
        return _opened_folder("local", None, None, path)
    return _opened_from_hub(model, revision)


def _opened_folder(
    source: str, revision: str | None, licence: str | None, folder: Path
) -> ModelSource:
    ggufs = sorted(folder.glob("*.gguf"))
    if (folder / "config.json").is_file() or not ggufs:
        return _opened(source, revision, licence, folder, None)
    if len(ggufs) > 1:
        names = ", ".join(path.name for path in ggufs)
        raise AotlmError(f"{folder} holds several GGUF files ({names}); name one of them")
    return _opened(source, revision, licence, folder, ggufs[0].name)


def _opened_from_hub(model: str, revision: str | None) -> ModelSource:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise AotlmError(
            f"{model} is neither a folder or file on this machine nor a Hugging Face id "
            "(owner/name), nor `demo`"
        )
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=HUB_PATTERNS))
    except GatedRepoError as error:
        raise AotlmError(
            f"{model} is gated: accept its terms on its page, set HF_TOKEN and run again"
        ) from error
    except RevisionNotFoundError as error:
        raise AotlmError(f"{model} has no revision {revision}; see its page for those") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise AotlmError(
            f"there is no public model {model} on the hub; check the id, or set HF_TOKEN for a "
            "private one"
        ) from error
    except Exception as error:  # any kind of network trouble
        raise AotlmError(
            f"{model} cannot be downloaded ({_first_line(error)}); check the network, or name a "
            "folder that holds the model"
        ) from error
    return _opened_folder(model, folder.name, _card_licence(folder), folder)


def _card_licence(folder: Path) -> str | None:
    card = folder / "README.md"
    found = re.search(r"^license:\s*(\S+)", card.read_text("utf-8"), re.M) if card.is_file() else None
    return found[1] if found else None


def _opened(
    source: str, revision: str | None, licence: str | None, folder: Path, gguf_file: str | None
) -> ModelSource:
    where = str(folder / gguf_file) if gguf_file else str(folder)
    config = _config(where, folder, gguf_file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with init_empty_weights(include_buffers=True):
            model = AutoModelForCausalLM.from_config(config)
    stored = _stored(where, folder, gguf_file, model)
    tensors = TensorSource(stored, resolve_names(model, stored))
    return ModelSource(source, revision, licence, folder, gguf_file, config, tensors)


def _stored(
    where: str, folder: Path, gguf_file: str | None, model: PreTrainedModel
) -> dict[str, StoredTensor]:
    stored = gguf_tensors(folder / gguf_file, model) if gguf_file else safetensors_tensors(folder)
    if not stored:
        raise AotlmError(
            f"{where} holds no weights (*.safetensors or one .gguf); other formats are not read: "
            "convert the model with save_pretrained"
        )
    return stored


def _config(where: str, folder: Path, gguf_file: str | None) -> PretrainedConfig:
    options = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        config = AutoConfig.from_pretrained(folder, **options)
    except Exception as error:  # unknown model_type, broken or missing file: many classes
        raise AotlmError(
            f"{where} has no configuration that transformers can read: {_first_line(error)}"
        ) from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise AotlmError(
            f"{where} is a {config.model_type} model, which is no causal language model"
        )
    names = config.architectures or []
    if names and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise AotlmError(
            f"{where} holds a {', '.join(names)}, not a causal language model (…ForCausalLM)"
        )
    return config


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


