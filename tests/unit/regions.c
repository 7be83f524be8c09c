// Regions as no model has them; see test_threads_regions.
#include <stdint.h>

void __kmpc_fork_call(void *location, int32_t count, void *body, ...);
void __kmpc_barrier(void *location, int32_t thread);
int omp_get_thread_num(void);
void __kmpc_for_static_init_8u(void *location, int32_t thread, int32_t schedule, int32_t *is_last,
                               uint64_t *lower, uint64_t *upper, int64_t *stride,
                               int64_t increment, int64_t chunk);
void __kmpc_for_static_init_4u(void *location, int32_t thread, int32_t schedule, int32_t *is_last,
                               uint32_t *lower, uint32_t *upper, int32_t *stride,
                               int32_t increment, int32_t chunk);

enum { SEEN = 7, DEEP_BYTES = 700000, MOST_THREADS = 64 };
static int n_iterations;

// Writes the thread's number, and what of the iterations is its own: the first, the last, and
// whether that is the loop's last; counted in 64 bits and in 32.
static void note(int32_t *out) {
  uint64_t lower = 0, upper = (uint64_t)n_iterations - 1;
  uint32_t lower4 = 0, upper4 = (uint32_t)n_iterations - 1;
  int64_t stride = 1;
  int32_t stride4 = 1;
  out[0] = omp_get_thread_num();
  __kmpc_for_static_init_8u(0, 0, 34, &out[3], &lower, &upper, &stride, 1, 0);
  __kmpc_for_static_init_4u(0, 0, 34, &out[6], &lower4, &upper4, &stride4, 1, 0);
  out[1] = (int32_t)lower;
  out[2] = (int32_t)upper;
  out[4] = (int32_t)lower4;
  out[5] = (int32_t)upper4;
}

static void inner(int32_t *thread, int32_t *bound, void *out) {
  volatile char deep[DEEP_BYTES];
  for (int i = 0; i < DEEP_BYTES; i += 4096) deep[i] = 1;
  note(out);
}

static void outer(int32_t *thread, int32_t *bound, void *all) {
  int32_t *out = (int32_t *)all + 2 * SEEN * omp_get_thread_num();
  __kmpc_fork_call(0, 1, inner, out);
  note(out + SEEN);
}

// Fills out [threads + 1, 2, SEEN]: what the inner region saw, and the outer one after it; the last
// row is what its caller sees once both have ended.
void nested(int32_t *out, int32_t threads, int32_t n) {
  n_iterations = n;
  __kmpc_fork_call(0, 1, outer, out);
  note(out + 2 * SEEN * threads);
}

static volatile int phase_of[MOST_THREADS];
static volatile int n_early;
static int team;

static void phases(int32_t *thread, int32_t *bound, void *rounds) {
  int me = omp_get_thread_num();
  for (int round = 1; round <= *(int32_t *)rounds; round++) {
    phase_of[me] = round;
    __kmpc_barrier(0, me);
    for (int i = 0; i < team; i++)
      if (phase_of[i] < round) n_early = 1;
    __kmpc_barrier(0, me);
  }
}

// Returns whether a thread passed a barrier before all had come to it.
int32_t passes_early(int32_t threads, int32_t rounds) {
  team = threads;
  n_early = 0;
  for (int i = 0; i < MOST_THREADS; i++) phase_of[i] = 0;
  __kmpc_fork_call(0, 1, phases, &rounds);
  return n_early;
}

// Passes two arguments where one is known.
void two_arguments(void) { __kmpc_fork_call(0, 2, inner, (void *)0, (void *)0); }
