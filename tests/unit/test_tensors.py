"""Tensors are read one by one as transformers reads them, whatever the checkpoint calls them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aotlm.capture.source import open_model
from aotlm.errors import AotlmError
from tests.unit.checkpoints import WEIGHTS, assert_same, configure, edit, rename, saved, tiny_model


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


def test_tensors_that_the_model_does_not_know_are_no_error(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.update({"rotary.inv_freq": torch.ones(3)}))
    assert "rotary.inv_freq" not in open_model(str(llama)).tensors.names()


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
