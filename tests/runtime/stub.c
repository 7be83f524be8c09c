// A model with the ABI of a compiled one, whose next token depends on all tokens in its cache.
//
// The state holds each position's token + 1; with s the sum of the tokens so far, times the first
// byte of the weights, the next token is the end (258) if s is a multiple of END_EVERY, else a
// letter. Weights below 0 make logits that are no numbers. Each call takes DELAY_MICROSECONDS, and its
// workspace WORKSPACE_PER_ROW bytes a row of logits. With a SCRIPT, the tokens behind the first PROMPT
// ones are its characters, then the end.
#include <stdint.h>
#include <unistd.h>

#ifndef END_EVERY
#define END_EVERY 11
#endif
#ifndef DELAY_MICROSECONDS
#define DELAY_MICROSECONDS 0
#endif
#ifndef WORKSPACE_PER_ROW
#define WORKSPACE_PER_ROW 0
#endif

typedef struct { int8_t *allocated, *aligned; int64_t offset, sizes[1], strides[1]; } bytes1_t;
typedef struct { int8_t *allocated, *aligned; int64_t offset, sizes[2], strides[2]; } bytes2_t;
typedef struct { int64_t *allocated, *aligned, offset, sizes[1], strides[1]; } ids1_t;
typedef struct { int64_t *allocated, *aligned, offset, sizes[2], strides[2]; } ids2_t;
typedef struct { float *allocated, *aligned; int64_t offset, sizes[3], strides[3]; } rows_t;

enum { STATE_BYTES = 8, END = 258, WORKSPACE_PER_TOKEN = 16 };

static int32_t threads = 1;

const char *aotlm_abi_digest(void) { return DIGEST; }
void aotlm_set_threads(int32_t n) { threads = n; }

static int64_t next_token(int64_t position, int64_t s) {
#ifdef SCRIPT
  static const unsigned char script[] = SCRIPT;
  int64_t index = position + 1 - PROMPT;
  return 0 <= index && index < (int64_t)sizeof script - 1 ? script[index] : END;
#else
  return s % END_EVERY ? 97 + s % 26 : END;
#endif
}

static int32_t forward(bytes1_t *weights, ids2_t *tokens, ids1_t *positions, int64_t C,
                       bytes2_t *state, bytes1_t *workspace, rows_t *logits) {
  int64_t T = tokens->sizes[1], R = logits->sizes[1], V = logits->sizes[2];
  int64_t begin = positions->aligned[0];
  int64_t *cache = (int64_t *)state->aligned;
  if (T < 1 || T > MAX_CHUNK || R > T) return 1;
  if (begin + T > C || C % 64 || state->sizes[1] < C * STATE_BYTES) return 2;
  if (workspace->sizes[0] < WORKSPACE_PER_TOKEN * T + WORKSPACE_PER_ROW * R + 64 * threads) return 3;
  if ((uintptr_t)state->aligned % 64 || (uintptr_t)workspace->aligned % 64) return 4;
  if (DELAY_MICROSECONDS) usleep(DELAY_MICROSECONDS);
  int64_t sum = 0;
  for (int64_t i = 0; i < begin; i++) {
    if (cache[i] == 0) return 5;
    sum += cache[i] - 1;
  }
  for (int64_t t = 0; t < T; t++) {
    cache[begin + t] = tokens->aligned[t] + 1;
    sum += tokens->aligned[t];
    if (t < T - R) continue;
    float *row = logits->aligned + (t - (T - R)) * V;
    for (int64_t v = 0; v < V; v++) row[v] = 0;
    row[next_token(begin + t, sum * weights->aligned[0])] = 1;
    row[V - 1] = 2;  // beyond the tokenizer's vocabulary
    if (weights->aligned[0] < 0) row[0] = __builtin_nanf("");
  }
  return 0;
}

#if ABI_VERSION == 1  // no context length: it is told from the state's size
#define ENTRY(NAME) \
  int32_t NAME(bytes1_t *w, ids2_t *t, ids1_t *p, bytes2_t *s, bytes1_t *k, rows_t *l) { \
    return forward(w, t, p, s->sizes[1] / STATE_BYTES, s, k, l); \
  }
#else
#define ENTRY(NAME) \
  int32_t NAME(bytes1_t *w, ids2_t *t, ids1_t *p, int64_t c, bytes2_t *s, bytes1_t *k, rows_t *l) { \
    return forward(w, t, p, c, s, k, l); \
  }
#endif
ENTRY(_mlir_ciface_forward_prefill)
ENTRY(_mlir_ciface_forward_decode)
