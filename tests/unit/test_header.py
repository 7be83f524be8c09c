"""The C header: every fact of the code, under names of C."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from aotlm.codegen.header import model_header
from aotlm.emit.abi import error_names
from aotlm.emit.main import ERROR_CODES, MAX_CHUNK_TOKENS
from tests.unit.handwritten import write_import


@pytest.fixture
def text(tmp_path: Path) -> str:
    model = write_import(tmp_path)
    codes = {str(code): error.meaning for code, error in ERROR_CODES.items()}
    abi = replace(model.abi, error_codes=codes)
    return model_header(replace(model, abi=abi, error_names=error_names()), "0" * 16, "qwen")


def test_every_error_has_a_name_and_its_sentence(text: str) -> None:
    found = re.findall(r"QWEN_ERROR_(\w+) = (\d+),  // (.*)", text)
    assert found == [(e.name, str(code), e.meaning) for code, e in ERROR_CODES.items()]
    assert len({name for name, _, _ in found}) == len(ERROR_CODES)


def test_the_rules_of_a_call_are_stated(text: str) -> None:
    words = " ".join(text.replace("//", "").split())
    assert "Weights, state and workspace begin at a multiple of 64 bytes" in words
    assert "Threads of the program may call at the same time" in words
    assert "T from 1 to QWEN_MAX_CHUNK_TOKENS" in words
    assert "The same for T = 1, and R = 0 or 1." in words
    assert f"#define QWEN_MAX_CHUNK_TOKENS {MAX_CHUNK_TOKENS} " in text
    assert '#define QWEN_WEIGHTS_LAYOUT_DIGEST "abab' in text


def test_every_name_begins_with_the_prefix(text: str) -> None:
    assert "two models with the prefix qwen;" in text
    left = set(re.findall(r"\w*aotlm\w*", text, re.IGNORECASE))
    assert left == set()


def test_an_import_without_names_of_its_errors_has_their_numbers(tmp_path: Path) -> None:
    assert "AOTLM_ERROR_2 = 2," in model_header(write_import(tmp_path), "0" * 16, "aotlm")
