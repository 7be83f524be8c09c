// Runs a compiled model from C: token ids in, greedy token ids out.
//
//   embed WEIGHTS MAX_TOKENS TOKEN...
//
// Prints the new ids on one line. All memory is ours: the model's functions allocate nothing.
#include "aotlm_model.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
  int64_t capacity;  // positions that the state has room for
  aotlm_bytes1 weights;
  aotlm_bytes2 state;
  aotlm_bytes1 workspace;
  float *logits;  // [1, 1, AOTLM_VOCAB_SIZE]
  int64_t position;
} model_t;

static void fail(const char *what, const char *value) {
  fprintf(stderr, "error: %s: %s\n", what, value);
  exit(1);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Returns zeroed memory, aligned to a page.
static int8_t *reserve(int64_t bytes) {
  void *memory = mmap(NULL, (size_t)larger(bytes, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("not enough memory", "make MAX_TOKENS smaller");
  return memory;
}

static aotlm_bytes1 bytes1(int8_t *data, int64_t size) {
  return (aotlm_bytes1){data, data, 0, {size}, {1}};
}

static int holds(const int8_t *text, uint64_t size, const char *word) {
  size_t length = strlen(word);
  for (uint64_t i = 0; i + length <= size; i++)
    if (memcmp(text + i, word, length) == 0) return 1;
  return 0;
}

// Maps the data section: it starts after eight bytes of length and that many bytes of JSON, which
// names the layout.
static aotlm_bytes1 map_weights(const char *path) {
  int file = open(path, O_RDONLY);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0) fail("cannot open the weights", path);
  int8_t *all = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (all == MAP_FAILED || status.st_size < 8) fail("cannot map the weights", path);
  uint64_t header;
  memcpy(&header, all, sizeof header);
  if (header > (uint64_t)status.st_size - 8 ||
      status.st_size - 8 - (int64_t)header != AOTLM_WEIGHTS_BYTES ||
      !holds(all + 8, header, AOTLM_WEIGHTS_LAYOUT_DIGEST))
    fail("these are not the weights of this model", path);
  return bytes1(all + 8 + header, AOTLM_WEIGHTS_BYTES);
}

static model_t open_model(const char *weights, int64_t positions, int64_t chunk, int64_t threads) {
  if (strcmp(aotlm_abi_digest(), AOTLM_ABI_DIGEST) != 0)
    fail("the header does not belong to the library", aotlm_abi_digest());
  int64_t block = AOTLM_POSITION_BLOCK;
  int64_t capacity = (positions + block - 1) / block * block;
  int64_t state = AOTLM_STATE_BYTES(capacity);
  int64_t workspace = larger(aotlm_prefill_workspace_bytes(chunk, 1, capacity, threads),
                             aotlm_decode_workspace_bytes(1, 1, capacity, threads));
  int8_t *state_data = reserve(state);
  aotlm_set_threads((int32_t)threads);
  return (model_t){
      .weights = map_weights(weights),
      .capacity = capacity,
      .state = {state_data, state_data, 0, {AOTLM_BATCH, state}, {state, 1}},
      .workspace = bytes1(reserve(workspace), workspace),
      .logits = (float *)reserve(AOTLM_VOCAB_SIZE * (int64_t)sizeof(float)),
  };
}

typedef int32_t (*entry_t)(aotlm_bytes1 *, aotlm_int2 *, aotlm_int1 *, int64_t, aotlm_bytes2 *,
                           aotlm_bytes1 *, aotlm_float3 *);

// Runs `count` tokens at the present position; `rows` (0 or 1) of logits are written.
static void run(entry_t entry, model_t *model, int64_t *ids, int64_t count, int64_t rows) {
  aotlm_int2 tokens = {ids, ids, 0, {AOTLM_BATCH, count}, {count, 1}};
  aotlm_int1 positions = {&model->position, &model->position, 0, {AOTLM_BATCH}, {1}};
  aotlm_float3 logits = {model->logits,
                         model->logits,
                         0,
                         {AOTLM_BATCH, rows, AOTLM_VOCAB_SIZE},
                         {rows * AOTLM_VOCAB_SIZE, AOTLM_VOCAB_SIZE, 1}};
  int32_t code = entry(&model->weights, &tokens, &positions, model->capacity, &model->state,
                       &model->workspace, &logits);
  if (code != AOTLM_OK) {
    char text[16];
    snprintf(text, sizeof text, "%d", code);
    fail("the model refused the call with aotlm_error", text);
  }
  model->position += count;
}

static int64_t best_token(const model_t *model) {
  int64_t best = 0;
  for (int64_t i = 1; i < AOTLM_VOCAB_SIZE; i++)
    if (model->logits[i] > model->logits[best]) best = i;
  return best;
}

static int ends(int64_t token) {
  static const int64_t eos[] = AOTLM_EOS_TOKENS;
  for (size_t i = 0; i < sizeof eos / sizeof *eos; i++)
    if (eos[i] == token) return 1;
  return 0;
}

static int64_t parse(const char *text, int64_t least, int64_t most) {
  char *end;
  long long value = strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > most)
    fail("not a number in the allowed range", text);
  return value;
}

static void generate(model_t *model, int64_t *ids, int64_t count, int64_t max_tokens) {
  for (int64_t begin = 0; begin < count; begin += AOTLM_MAX_CHUNK_TOKENS) {
    int64_t left = count - begin;
    int64_t chunk = left < AOTLM_MAX_CHUNK_TOKENS ? left : AOTLM_MAX_CHUNK_TOKENS;
    run(aotlm_prefill, model, ids + begin, chunk, chunk == left);
  }
  for (int64_t made = 0; made < max_tokens; made++) {
    int64_t token = best_token(model);
    if (ends(token)) break;
    printf("%s%lld", made ? " " : "", (long long)token);
    fflush(stdout);
    if (made + 1 < max_tokens) run(aotlm_decode, model, &token, 1, 1);
  }
  printf("\n");
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: embed WEIGHTS MAX_TOKENS TOKEN...\n");
    return 2;
  }
  int64_t count = argc - 3;
  int64_t max_tokens = parse(argv[2], 0, AOTLM_CONTEXT_LENGTH);
  if (count + max_tokens > AOTLM_CONTEXT_LENGTH)
    fail("prompt and MAX_TOKENS are more than the model's context", argv[2]);
  int64_t *ids = (int64_t *)reserve(count * (int64_t)sizeof *ids);
  for (int64_t i = 0; i < count; i++) ids[i] = parse(argv[3 + i], 0, AOTLM_VOCAB_SIZE - 1);

  int64_t chunk = count < AOTLM_MAX_CHUNK_TOKENS ? count : AOTLM_MAX_CHUNK_TOKENS;
  int64_t threads = larger(sysconf(_SC_NPROCESSORS_ONLN), 1);
  model_t model = open_model(argv[1], count + max_tokens, chunk, threads);
  generate(&model, ids, count, max_tokens);
  return 0;
}
