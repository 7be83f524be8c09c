"""A GGUF file as OpenVINO's own model: `python -m bench.openvino_convert MODEL.gguf`.

`openvino_model.xml` and its weights are written beside the file, by the reader of OpenVINO GenAI.
"""

import sys
from pathlib import Path

import openvino_genai


def convert(path: Path) -> None:
    """Write the model.

    The pipeline writes it before it compiles it for itself, which fails on some CPUs;
    only the written model is used.

    Raises:
        RuntimeError: OpenVINO GenAI does not read the file.
    """
    written = path.with_name("openvino_model.xml")
    try:
        openvino_genai.LLMPipeline(path, "CPU", enable_save_ov_model=True)
    except RuntimeError:
        if not written.exists():
            raise


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
