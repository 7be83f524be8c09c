"""The files of a model's source that are no tensors, with their digests, for the provenance."""

import hashlib
from typing import Final

from aotlm.capture.source import TOKENIZER_FILES, ModelSource
from aotlm.capture.source_gguf import read_gguf_table
from aotlm.support.build_record import InputFile

# With TOKENIZER_FILES, all that transformers reads. An index of shards is left out: how tensors
# are cut into files changes nothing.
NAMES: Final = (
    *TOKENIZER_FILES,
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
)
GGUF_METADATA: Final = "gguf metadata"


def input_files(source: ModelSource) -> list[InputFile]:
    """Return the digests of the configuration's and the tokenizer's files, sorted by name.

    A GGUF file holds both before its tensors' data: those bytes are one entry, "gguf metadata".
    """
    if source.gguf_file:
        path = source.folder / source.gguf_file
        with path.open("rb") as file:
            data = file.read(read_gguf_table(path).data_start)
        return [InputFile(name=GGUF_METADATA, sha256=hashlib.sha256(data).hexdigest())]
    paths = [source.folder / name for name in sorted(NAMES)]
    return [
        InputFile(name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        for path in paths
        if path.is_file()
    ]
