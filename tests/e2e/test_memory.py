"""The memory of a process that loads the bundle and answers."""

import json
import subprocess
import sys

from aotlm_runtime.bundle.manifest import read_manifest
from tests.e2e.conftest import Built

N_REPEATS = 20
THREADS = 2
SPARE_BYTES = 200 * 10**6  # the interpreter, numpy, the tokenizer, a row of logits
GROWTH_BYTES = 10**6

# The process measures itself: ru_maxrss would start at the size of the process that forked it.
ANSWER = """
import json, sys
import aotlm_runtime
from aotlm_runtime import GenerationOptions

def memory(key):
    with open("/proc/self/status", encoding="ascii") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

def answer():
    model.session.rewind(0)
    return "".join(model.generate("Why is the sky blue?", GenerationOptions(max_tokens=16)))

bundle, threads, repeats = sys.argv[1:]
model = aotlm_runtime.load(bundle, threads=int(threads))
text = answer()
peak, before = memory("VmHWM"), memory("VmRSS")
same = all([answer() == text for _ in range(int(repeats))])
figures = {"peak": peak, "growth": memory("VmRSS") - before, "same": same}
figures |= {"prompt": model.last.prompt_tokens, "tokens": model.session.position}
print(json.dumps(figures | {"context": model.session.context_length}))
"""


def test_the_peak_keeps_its_bound_and_repeats_add_nothing(built: Built) -> None:
    command = [sys.executable, "-c", ANSWER, str(built.bundle), str(THREADS), str(N_REPEATS)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    figures = json.loads(result.stdout)
    abi = read_manifest(built.bundle / "manifest.json").abi
    block = abi.position_block
    touched = -(-figures["tokens"] // block) * block * abi.state_bytes.C
    length = -(-figures["context"] // block) * block
    sizes = {"R": 1, "C": length, "threads": THREADS}
    workspace = max(
        abi.prefill_workspace.at(T=figures["prompt"], **sizes),
        abi.decode_workspace.at(T=1, **sizes),
    )
    print(f"{figures}; weights {abi.weights_size_bytes}, state {touched}, workspace {workspace}")
    assert figures["same"]
    assert figures["peak"] <= abi.weights_size_bytes + touched + workspace + SPARE_BYTES
    assert figures["growth"] < GROWTH_BYTES
