"""Models are found, or refused in a sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors as hub_errors
from transformers import BertConfig, T5Config

from aotlm.capture import source_hub
from aotlm.capture.source import open_model
from aotlm.errors import AotlmError, UsageError
from tests.unit.checkpoints import WEIGHTS, configure, saved


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    saved(tmp_path, tie_word_embeddings=False)
    return tmp_path


def _cut(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def _scribble(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:8] + b"?" + content[9:])


def _index(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _bad_index(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "model.safetensors.index.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"model.safetensors is not a whole safetensors file \(.*\); fetch it again"),
        (_scribble, r"model.safetensors is not a whole safetensors file \(.*\); fetch it again"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), "is not a whole safetensors file"),
        (
            lambda folder: (folder / WEIGHTS).unlink(),
            "has no model.safetensors, no .* and no .gguf",
        ),
        (_index, "lacks a.safetensors, b.safetensors; fetch what is missing"),
        (_bad_index, "is no index of safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json and no .gguf file"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "holds no JSON object"),
        (lambda folder: configure(folder, model_type="hal"), "says model_type 'hal', which"),
        (lambda folder: configure(folder, model_type=None), "says model_type None, which"),
        (lambda folder: configure(folder, hidden_act=[1]), "transformers cannot read .*config"),
        (
            lambda folder: configure(folder, quantization_config={"quant_method": "gptq"}),
            r"is quantised \(gptq\); import the model that it was made from",
        ),
        (
            lambda folder: configure(folder, architectures=["LlamaForSequenceClassification"]),
            "of a LlamaForSequenceClassification, not of a causal language model",
        ),
    ],
)
def test_damage_is_one_sentence(llama: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(llama)
    with pytest.raises(AotlmError, match=message) as caught:
        open_model(str(llama))
    assert "\n" not in str(caught.value)


def test_an_encoder_is_no_causal_language_model(tmp_path: Path) -> None:
    BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    with pytest.raises(AotlmError, match="of a BertForMaskedLM, not of a causal language model"):
        open_model(str(tmp_path))


def test_an_encoder_and_decoder_are_no_causal_language_model(tmp_path: Path) -> None:
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(AotlmError, match="of a T5ForConditionalGeneration, not of a causal"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("word", ["/no/such/folder", "./folder", "a/b/c", "model.gguf", "a b"])
def test_a_word_that_names_nothing_is_wrong_usage(word: str) -> None:
    with pytest.raises(UsageError, match=f"{re.escape(word)} is no folder or file"):
        open_model(word)


@pytest.mark.parametrize("model", ["demo", "."])
def test_only_hub_models_have_revisions(model: str) -> None:
    with pytest.raises(UsageError, match="has no revisions; drop --revision main"):
        open_model(model, "main")


def test_a_hub_model_records_its_commit_and_the_cards_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("c0ffee" * 6)
    saved(folder)
    (folder / "README.md").write_text("---\nlicense: mit\ntags: [x]\n---\n# Model\n")
    monkeypatch.setattr(source_hub, "snapshot_download", lambda *words, **options: str(folder))
    source = open_model("owner/name", "main")
    assert (source.source, source.revision, source.licence) == ("owner/name", folder.name, "mit")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GatedRepoError", "owner/name is gated; accept its terms"),
        ("RepositoryNotFoundError", "there is no public model owner/name on the hub"),
        ("RevisionNotFoundError", "owner/name has no revision v9"),
        ("LocalEntryNotFoundError", "the hub cannot be reached and owner/name was never fetched"),
        ("OSError", "owner/name was not fetched: ouch; check the network"),
    ],
)
def test_trouble_with_the_hub_is_one_sentence(
    error: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(hub_errors, error, OSError)
    raised = kind.__new__(kind) if error != "OSError" else OSError("ouch.\nmore")

    def download(*words: Any, **options: Any) -> str:
        raise raised

    monkeypatch.setattr(source_hub, "snapshot_download", download)
    with pytest.raises(AotlmError, match=message) as caught:
        open_model("owner/name", "v9")
    assert "\n" not in str(caught.value)
