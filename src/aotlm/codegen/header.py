"""The C header of a compiled model, generated from what the import recorded.

Texts here have the default prefix; the finished header has the library's own.
"""

import re

from aotlm_runtime.bundle.manifest import Abi, Bytes, ModelFile
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX

_TOP = """\
// The interface of one compiled model and of its static library. Generated: do not edit.
//
// The caller owns every buffer. Weights, state and workspace begin at a multiple of 64 bytes; the
// state is zeroed before position 0. The weights are the data section of weights.safetensors,
// mapped read-only. It starts behind 8 bytes (the length of what follows, little-endian) and JSON,
// which holds AOTLM_WEIGHTS_LAYOUT_DIGEST if the file is one for this code.
//
// Threads of the program may call at the same time, each with tokens, positions, state, workspace
// and logits of its own; they share the weights. One call at a time has the library's threads, and
// the others run on their caller's thread alone. The results are the same bits.
//
// A program can hold several models if each was compiled with a prefix of its own, as
// `inv compile --prefix NAME` does: all names begin with it then. Two models with one prefix do
// not link: aotlm_abi_digest is there twice.
#if defined(AOTLM_MODEL_H) && !defined(AOTLM_MODEL_{program})
#error "two models with the prefix aotlm; compile one of them with inv compile --prefix NAME"
#endif
#ifndef AOTLM_MODEL_H
#define AOTLM_MODEL_H
#define AOTLM_MODEL_{program}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
"""

_FUNCTIONS = """\
// A dense array, as compiled code takes it: `aligned` is the data (`allocated` is not looked at),
// `offset` is 0, and `strides` count elements.
#define AOTLM_ARRAY(NAME, TYPE, RANK) \\
  typedef struct { \\
    TYPE *allocated; \\
    TYPE *aligned; \\
    int64_t offset; \\
    int64_t sizes[RANK]; \\
    int64_t strides[RANK]; \\
  } NAME
AOTLM_ARRAY(aotlm_bytes1, int8_t, 1);
AOTLM_ARRAY(aotlm_bytes2, int8_t, 2);
AOTLM_ARRAY(aotlm_int1, int64_t, 1);
AOTLM_ARRAY(aotlm_int2, int64_t, 2);
AOTLM_ARRAY(aotlm_float3, float, 3);
#undef AOTLM_ARRAY

// These link with the library of this header alone.
#define aotlm_prefill {prefill}
#define aotlm_decode {decode}

// Runs tokens[B, T] at positions[B]..., T from 1 to AOTLM_MAX_CHUNK_TOKENS, and writes the logits
// of the last R of them, where R is the size of logits[B, R, V], from 0 to T. state is [B, bytes]
// with room for context_length positions, which is C. Returns an aotlm_error; nothing is written
// if it is not AOTLM_OK.
int32_t aotlm_prefill(
    aotlm_bytes1 *weights, aotlm_int2 *tokens, aotlm_int1 *positions, int64_t context_length,
    aotlm_bytes2 *state, aotlm_bytes1 *workspace, aotlm_float3 *logits);

// The same for T = 1, and R = 0 or 1.
int32_t aotlm_decode(
    aotlm_bytes1 *weights, aotlm_int2 *tokens, aotlm_int1 *positions, int64_t context_length,
    aotlm_bytes2 *state, aotlm_bytes1 *workspace, aotlm_float3 *logits);

// Equals AOTLM_ABI_DIGEST of the header that belongs to the library.
const char *aotlm_abi_digest(void);

// Sets how many threads calls use from now on (0: one for each CPU). Not during any call, whose
// workspace has room for the earlier number.
void aotlm_set_threads(int32_t threads);

#ifdef __cplusplus
}
#endif

#endif
"""


def header_name(prefix: str) -> str:
    """Return the header's file name."""
    return f"{prefix}_model.h"


def entry_symbol(entry: str, program: str) -> str:
    """Return what the linker calls an entry point of the code with this digest."""
    return f"{DEFAULT_PREFIX}_{entry}_{program}"


def model_header(model: ModelFile, program: str, prefix: str) -> str:
    """Return the header's text; `program` is the digest of the compiled code."""
    functions = _FUNCTIONS
    for entry in ("prefill", "decode"):
        functions = functions.replace(f"{{{entry}}}", entry_symbol(entry, program))
    top = _TOP.replace("{program}", program)
    parts = (top, _constants(model), _errors(model), _sizes(model.abi), functions)
    text = re.sub(rf"\b{DEFAULT_PREFIX}_", f"{prefix}_", "\n".join(parts))
    text = text.replace(f"the prefix {DEFAULT_PREFIX};", f"the prefix {prefix};")
    return text.replace(f"{DEFAULT_PREFIX.upper()}_", f"{prefix.upper()}_")


def _constants(model: ModelFile) -> str:
    abi = model.abi
    lines = [
        f"#define AOTLM_ABI_VERSION {abi.version}",
        f'#define AOTLM_ABI_DIGEST "{abi.digest}"',
        f'#define AOTLM_WEIGHTS_LAYOUT_DIGEST "{abi.weights_layout_digest}"',
        "",
        "// Sizes are given in these letters: B sequences, T tokens of the call, R rows of logits,",
        "// C positions of the state, V entries of the vocabulary.",
        f"#define AOTLM_BATCH {abi.batch}  // B",
        f"#define AOTLM_VOCAB_SIZE {model.model.vocab_size}  // V",
        f"#define AOTLM_CONTEXT_LENGTH {model.model.context_length}  // the model's own",
        f"#define AOTLM_MAX_CHUNK_TOKENS {abi.max_chunk_tokens}  // the largest T of one call",
        f"#define AOTLM_POSITION_BLOCK {abi.position_block}  // C is a multiple of it",
        f"#define AOTLM_WEIGHTS_BYTES INT64_C({abi.weights_size_bytes})",
        f"#define AOTLM_STATE_BYTES(C) (INT64_C({abi.state_bytes.const}) "
        f"+ INT64_C({abi.state_bytes.C}) * (C))",
        f"#define AOTLM_EOS_TOKENS {{{', '.join(map(str, model.model.eos_token_ids)) or '-1'}}}",
        "",
    ]
    return "\n".join(lines)


def _errors(model: ModelFile) -> str:
    lines = ["typedef enum {", "  AOTLM_OK = 0,"]
    codes = sorted(model.abi.error_codes.items(), key=lambda item: int(item[0]))
    lines += [
        f"  AOTLM_ERROR_{model.error_names.get(code, code)} = {code},  // {sentence}"
        for code, sentence in codes
    ]
    return "\n".join([*lines, "} aotlm_error;", ""])


def _sizes(abi: Abi) -> str:
    return "\n".join(
        _size_function(name, size)
        for name, size in (("prefill", abi.prefill_workspace), ("decode", abi.decode_workspace))
    )


def _size_function(name: str, size: Bytes) -> str:
    terms = {"T": size.T, "R": size.R, "C": size.C, "threads": size.threads}
    formula = [f"INT64_C({size.const})"]
    formula += [f"INT64_C({factor}) * {term}" for term, factor in terms.items() if factor]
    unused = "".join(f"  (void){term};\n" for term, factor in terms.items() if not factor)
    return (
        f"static inline int64_t aotlm_{name}_workspace_bytes(int64_t T, int64_t R, int64_t C,\n"
        f"{' ' * (len(name) + 46)}int64_t threads) {{\n"
        f"{unused}"
        f"  return {' + '.join(formula)};\n"
        "}\n"
    )
