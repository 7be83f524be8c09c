"""The C header of a compiled model, generated from what the import recorded."""

from aotlm_runtime.bundle.manifest import Abi, Bytes, ModelFile

HEADER_NAME = "aotlm_model.h"

_TOP = """\
// The interface of one compiled model. Generated: do not edit.
//
// The caller owns every buffer. State and workspace are aligned to 64 bytes; the state is zeroed
// before position 0. The weights are the data section of weights.safetensors, mapped read-only.
#ifndef AOTLM_MODEL_H
#define AOTLM_MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
"""

_FUNCTIONS = """\
// A dense array, as compiled code takes it: `aligned` is the data (`allocated` is not looked at),
// `offset` and `strides` count elements.
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

// Runs tokens[B, T] at positions[B]... and writes the logits of the last R of them, where R is
// the size of logits[B, R, V] and may be 0. state is [B, bytes] with room for context_length
// positions, which is C. Returns an aotlm_error.
int32_t {prefill}(
    aotlm_bytes1 *weights, aotlm_int2 *tokens, aotlm_int1 *positions, int64_t context_length,
    aotlm_bytes2 *state, aotlm_bytes1 *workspace, aotlm_float3 *logits);

// The same for T = 1 and R = 1.
int32_t {decode}(
    aotlm_bytes1 *weights, aotlm_int2 *tokens, aotlm_int1 *positions, int64_t context_length,
    aotlm_bytes2 *state, aotlm_bytes1 *workspace, aotlm_float3 *logits);

// Equals AOTLM_ABI_DIGEST of the header that belongs to the library.
const char *aotlm_abi_digest(void);

// Sets how many threads calls use from now on (0: one for each CPU). Not during a call.
void aotlm_set_threads(int32_t threads);

#ifdef __cplusplus
}
#endif

#endif
"""


def model_header(model: ModelFile) -> str:
    """Return the text of `aotlm_model.h`."""
    functions = _FUNCTIONS.replace("{prefill}", model.abi.prefill)
    functions = functions.replace("{decode}", model.abi.decode)
    parts = (_TOP, _constants(model), _errors(model.abi), _sizes(model.abi), functions)
    return "\n".join(parts)


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


def _errors(abi: Abi) -> str:
    lines = ["typedef enum {", "  AOTLM_OK = 0,"]
    codes = sorted(abi.error_codes.items(), key=lambda item: int(item[0]))
    lines += [f"  AOTLM_ERROR_{code} = {code},  // {sentence}" for code, sentence in codes]
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
