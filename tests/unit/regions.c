// Regions as no model has them: one inside of another, and a deep stack. See test_threads_regions.
#include <stdint.h>
#include <string.h>

void __kmpc_fork_call(void *location, int32_t count, void *body, ...);
int omp_get_thread_num(void);
void __kmpc_for_static_init_8u(void *location, int32_t thread, int32_t schedule, int32_t *is_last,
                               uint64_t *lower, uint64_t *upper, int64_t *stride,
                               int64_t increment, int64_t chunk);

enum { N = 100, DEEP_BYTES = 700000 };

// Writes the thread's number, and the first and last of the N iterations that are its own.
static void note(int32_t *out) {
  uint64_t lower = 0, upper = N - 1;
  int64_t stride = 1;
  int32_t is_last = 0;
  __kmpc_for_static_init_8u(0, 0, 34, &is_last, &lower, &upper, &stride, 1, 0);
  out[0] = omp_get_thread_num();
  out[1] = (int32_t)lower;
  out[2] = (int32_t)upper;
  out[3] = is_last;
}

static void inner(int32_t *thread, int32_t *bound, void *out) {
  volatile char deep[DEEP_BYTES];
  for (int i = 0; i < DEEP_BYTES; i += 4096) deep[i] = 1;
  note(out);
}

static void outer(int32_t *thread, int32_t *bound, void *all) {
  int32_t *out = (int32_t *)all + 8 * omp_get_thread_num();
  __kmpc_fork_call(0, 1, inner, out);
  note(out + 4);
}

// Fills out [threads + 1, 2, 4]: what the inner region saw, and the outer one after it; the last
// row is what its caller sees once both have ended.
void nested(int32_t *out, int32_t threads) {
  __kmpc_fork_call(0, 1, outer, out);
  note(out + 8 * threads);
}
