"""Tensors are read one by one as transformers reads them, whatever the checkpoint calls them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from aotlm.capture.source import ModelSource, open_model
from aotlm.errors import AotlmError
from tests.unit.checkpoints import WEIGHTS, assert_same, configure, edit, rename, saved, tiny_model


def _of_tensors(source: ModelSource) -> list[str]:
    """Return the lines about tensors and files, without those of the generation's configuration."""
    return [line for line in source.not_used if "generation_config.json: " not in line]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    saved(tmp_path, tie_word_embeddings=False)
    return tmp_path


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "gemma3_text", "phi3", "starcoder2"])
def test_every_parameter_is_what_transformers_saved(tmp_path: Path, kind: str, tied: bool) -> None:
    model = saved(tmp_path, kind, tie_word_embeddings=tied)
    source = open_model(str(tmp_path))
    assert_same(source, model)
    assert len(source.tensors.names()) == len(list(model.named_parameters()))
    assert source.config.architectures == [type(model).__name__]


@pytest.mark.parametrize(("dtype", "name"), [("float16", "F16"), ("bfloat16", "BF16")])
def test_half_precision_is_widened_without_loss(tmp_path: Path, dtype: str, name: str) -> None:
    model = tiny_model().to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    source = open_model(str(tmp_path))
    assert_same(source, model)
    assert source.tensors.digest("model.norm.weight")[:2] == (name, (32,))


def test_a_sharded_checkpoint_is_read_like_a_whole_one(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same(open_model(str(tmp_path)), tiny_model())


def test_names_without_the_base_models_prefix_are_found(tmp_path: Path) -> None:
    model = saved(tmp_path, "gpt2")
    edit(tmp_path, lambda tensors: rename(tensors, "transformer.", ""))
    assert not any(name.startswith("transformer.") for name in load_file(tmp_path / WEIGHTS))
    assert_same(open_model(str(tmp_path)), model)


def test_a_tie_holds_whichever_name_the_checkpoint_has(tmp_path: Path) -> None:
    model = saved(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, lambda tensors: rename(tensors, "model.embed_tokens.", "lm_head."))
    source = open_model(str(tmp_path))
    assert_same(source, model)
    assert "lm_head.weight" not in source.tensors.names()


def test_a_tie_that_the_checkpoint_breaks_is_an_error(llama: Path) -> None:
    configure(llama, tie_word_embeddings=True)
    with pytest.raises(AotlmError, match=r"lm_head.weight differ, but tie_word_embeddings is true"):
        _ = open_model(str(llama)).tensors


def test_tied_tensors_may_be_stored_twice(llama: Path) -> None:
    configure(llama, tie_word_embeddings=True)
    edit(llama, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert "lm_head.weight" not in open_model(str(llama)).tensors.names()


def test_all_missing_and_misshapen_tensors_are_in_one_error(llama: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"]
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:70].clone()

    edit(llama, damage)
    with pytest.raises(AotlmError) as caught:
        _ = open_model(str(llama)).tensors
    assert str(caught.value) == (
        "the checkpoint does not fit its configuration: "
        "model.layers.1.mlp.up_proj.weight [48, 32] is missing; "
        "model.norm.weight [32] is missing; "
        "lm_head.weight is [70, 32] where lm_head.weight is [80, 32]; fetch the model again"
    )


def test_rotary_frequencies_and_masks_are_not_needed_and_listed(llama: Path) -> None:
    more = {"rotary.inv_freq": torch.ones(3), "model.layers.0.attn.bias": torch.ones(1, 1, 4, 4)}
    edit(llama, lambda tensors: tensors.update(more))
    source = open_model(str(llama))
    assert "rotary.inv_freq" not in source.tensors.names()
    assert _of_tensors(source) == [
        "not used: rotary.inv_freq: rotary frequencies, which the configuration tells",
        "not used: model.layers.0.attn.bias: the causal mask",
    ]


def test_tensors_that_nothing_uses_are_refused_by_name_or_accepted(llama: Path) -> None:
    biases = {f"model.layers.{i}.self_attn.q_proj.bias": torch.ones(32) for i in range(2)}
    edit(llama, lambda tensors: tensors.update(biases))
    with pytest.raises(
        AotlmError, match=r"does not use: model.layers.0.self_attn.q_proj.bias, mod"
    ):
        _ = open_model(str(llama)).tensors
    source = open_model(str(llama), accepts_unused=True)
    assert _of_tensors(source) == [f"not used: {', '.join(biases)}: accepted with --accept-unused"]


def test_the_index_decides_where_a_tensor_is_read(tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    last = sorted(set(index.values()))[-1]
    name = next(name for name, file in sorted(index.items()) if file != last)
    tensors = load_file(tmp_path / last)
    tensors[name] = torch.zeros_like(dict(model.named_parameters())[name].data)
    save_file(tensors, tmp_path / last)
    save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    source = open_model(str(tmp_path))
    assert_same(source, model)
    assert _of_tensors(source) == [
        "not used: other.safetensors: model.safetensors.index.json does not name them",
        f"not used: {name} in {last}: model.safetensors.index.json names another place, or none",
    ]


def test_an_index_that_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path, max_shard_size="20KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = files[0]
    path.write_text(json.dumps(index))
    with pytest.raises(AotlmError, match=r"says that model.norm.weight is in .* does not hold it"):
        open_model(str(tmp_path))


def test_integers_are_no_weights(llama: Path) -> None:
    edit(llama, lambda t: t.update({"lm_head.weight": torch.ones(80, 32, dtype=torch.int8)}))
    with pytest.raises(AotlmError, match=r"tensor lm_head.weight is stored as I8, wanted is BF16"):
        open_model(str(llama)).tensors.read("lm_head.weight")


def test_a_digest_is_that_of_the_stored_bytes(llama: Path) -> None:
    before = open_model(str(llama)).tensors.digest("model.norm.weight")
    edit(llama, lambda tensors: tensors["model.norm.weight"].add_(1))
    after = open_model(str(llama)).tensors.digest("model.norm.weight")
    assert before[:2] == after[:2] == ("F32", (32,))
    assert before[2] != after[2]
