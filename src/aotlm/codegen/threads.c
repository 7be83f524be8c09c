// A pool of threads behind the OpenMP entry points that LLVM calls for parallel loops.
//
// A decode step has over a hundred parallel regions, each some microseconds long. The pool keeps
// its workers spinning for a short while after a region, so that the next one starts within a
// fraction of a microsecond, and lets them sleep on a futex after that. A team that is larger
// than the number of CPUs does not spin at all.
//
// Every entry point of OpenMP is weak: who links the static library may link libomp before it.
// Loops are cut into one contiguous piece for each thread, in thread order.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WEAK __attribute__((weak))
enum { MAX_THREADS = 256, CACHE_LINE = 64, WORKER_STACK_BYTES = 1 << 20 };

// How often a waiting thread looks before it sleeps. A pause takes 40 to 140 cycles, so the long
// wait is about 100 us: longer than the serial stretches inside a step, shorter than what anybody
// would notice as a busy idle process. But where other programs want the CPUs as well, the thread
// that is waited for may have none, or may wait for this very one. Looking on is then worse than
// sleeping (decode took 2.5 times as long beside one busy process), so after a long wait in vain
// the next ones are short, the more of them the more often that happened.
enum { SHORT_SPINS = 200, LONG_SPINS = 4000, MAX_CAUTION = 1024 };

// A value that threads wait on until it changes. `sleepers` saves the system call that wakes
// nobody; both are sequentially consistent, so a waiter that goes to sleep is seen.
typedef struct {
  _Alignas(CACHE_LINE) atomic_uint value;
  atomic_uint sleepers;
} signal_t;

typedef void (*body_t)(int32_t *thread, int32_t *bound_thread, void *arguments);

// The current region. Only the thread that holds `owner` writes it, while all workers rest.
static struct {
  body_t body;
  void *arguments;
  int size;
} team;

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER;
static signal_t tickets[MAX_THREADS];  // tickets[i] changes when worker i has a region to run
static signal_t unfinished;            // workers that still run the region
static signal_t barrier;               // changes when all of the team have arrived
static atomic_int barrier_arrived;

static atomic_int wanted_threads;  // 0: as many as there are CPUs
static atomic_int cpus = 1;        // that this process may use
static atomic_int crowded;         // the team is larger than the number of CPUs
static int started = 1;            // threads that exist, the caller's own included

// A profile: one entry for each region's body, in the order of their first run. The table ends
// with the first entry without a body.
typedef struct {
  body_t body;
  uint64_t calls;
  uint64_t region_ns;  // on the thread that called: handing out, its own share, waiting
  uint64_t own_ns;     // its own share alone
} profile_t;

static profile_t *_Atomic profile;
static atomic_int profile_capacity;

static _Thread_local int thread_id;
static _Thread_local int team_size = 1;
static _Thread_local int inside_region;
static _Thread_local int caution = 1;  // short waits after the next long one in vain
static _Thread_local int short_waits;  // of them still to come

static void futex(atomic_uint *word, int operation, unsigned value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static inline void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int choose_spins(void) {
  if (atomic_load_explicit(&crowded, memory_order_relaxed)) return 0;
  if (short_waits == 0) return LONG_SPINS;
  short_waits--;
  return SHORT_SPINS;
}

static void learn_from_long_wait(int in_vain) {
  if (in_vain) {
    short_waits = caution;
    caution = caution * 4 < MAX_CAUTION ? caution * 4 : MAX_CAUTION;
  } else if (caution > 1) {
    caution /= 2;
  }
}

// Returns the signal's value as soon as it is no longer `old`.
static unsigned wait_while(signal_t *signal, unsigned old) {
  int limit = choose_spins();
  for (int i = 0; i < limit; i++) {
    unsigned now = atomic_load_explicit(&signal->value, memory_order_acquire);
    if (now != old) {
      if (i > SHORT_SPINS) learn_from_long_wait(0);
      return now;
    }
    pause_cpu();
  }
  if (limit == LONG_SPINS) learn_from_long_wait(1);
  atomic_fetch_add(&signal->sleepers, 1);
  unsigned now;
  while ((now = atomic_load(&signal->value)) == old) futex(&signal->value, FUTEX_WAIT, old);
  atomic_fetch_sub(&signal->sleepers, 1);
  return now;
}

static void wake_sleepers(signal_t *signal) {
  if (atomic_load(&signal->sleepers)) futex(&signal->value, FUTEX_WAKE, INT_MAX);
}

static void run_body(int id, int size) {
  int32_t thread = id;
  thread_id = id;
  team_size = size;
  team.body(&thread, &thread, team.arguments);
}

static void *work(void *argument) {
  int id = (int)(intptr_t)argument;
  inside_region = 1;
  // The owner creates a worker before it hands out the first ticket, which is 1.
  for (unsigned ticket = 0;;) {
    ticket = wait_while(&tickets[id], ticket);
    run_body(id, team.size);
    if (atomic_fetch_sub(&unfinished.value, 1) == 1) wake_sleepers(&unfinished);
  }
  return NULL;
}

static void count_cpus(void) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  atomic_store(&cpus, known ? CPU_COUNT(&allowed) : 1);
}

// A forked child has none of the workers, and perhaps a region that will never end.
static void forget_workers(void) {
  pthread_mutex_init(&owner, NULL);
  for (int i = 0; i < MAX_THREADS; i++) {
    atomic_store(&tickets[i].value, 0);
    atomic_store(&tickets[i].sleepers, 0);
  }
  atomic_store(&unfinished.value, 0);
  atomic_store(&unfinished.sleepers, 0);
  atomic_store(&barrier.sleepers, 0);
  atomic_store(&barrier_arrived, 0);
  started = 1;
}

__attribute__((constructor)) static void prepare(void) {
  count_cpus();
  pthread_atfork(NULL, NULL, forget_workers);
}

// Starts workers until there are `count` threads; returns how many there are in the end.
static int start_workers(int count) {
  if (started >= count) return count;
  // Workers leave signals to the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, WORKER_STACK_BYTES);
  while (started < count) {
    pthread_t worker;
    if (pthread_create(&worker, &attributes, work, (void *)(intptr_t)started) != 0) break;
    started++;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started < count ? started : count;
}

static void run_alone(body_t body, void *arguments) {
  int id_before = thread_id, size_before = team_size, inside_before = inside_region;
  int32_t zero = 0;
  thread_id = 0;
  team_size = 1;
  inside_region = 1;
  body(&zero, &zero, arguments);
  thread_id = id_before;
  team_size = size_before;
  inside_region = inside_before;
}

static void run_with_team(body_t body, void *arguments, int count) {
  int size = start_workers(count);
  team.body = body;
  team.arguments = arguments;
  team.size = size;
  atomic_store(&crowded, size > atomic_load(&cpus));
  atomic_store(&unfinished.value, (unsigned)size - 1);
  for (int id = 1; id < size; id++) {
    atomic_fetch_add(&tickets[id].value, 1);
    wake_sleepers(&tickets[id]);
  }
  inside_region = 1;
  run_body(0, size);
  inside_region = 0;
  team_size = 1;
  for (unsigned left; (left = atomic_load(&unfinished.value)) != 0;) wait_while(&unfinished, left);
}

// Sets how many threads a call may use from now on; 0 means one for each CPU. Not to be called
// while compiled code runs, whose workspace was measured for the earlier number.
void aotlm_set_threads(int32_t threads) {
  count_cpus();
  if (threads < 0) threads = 0;
  atomic_store(&wanted_threads, threads > MAX_THREADS ? MAX_THREADS : threads);
}

WEAK int omp_get_max_threads(void) {
  int wanted = atomic_load(&wanted_threads);
  if (wanted) return wanted;
  int available = atomic_load(&cpus);
  return available > MAX_THREADS ? MAX_THREADS : available;
}

WEAK int omp_get_thread_num(void) { return thread_id; }

WEAK int32_t __kmpc_global_thread_num(void *location) { return thread_id; }

// Runs `body` once on each thread of a team. Who finds the pool in use by another thread of the
// program, or is in a region already, runs it alone: the result is the same.
static void run(body_t body, void *arguments) {
  int threads = omp_get_max_threads();
  if (threads == 1 || inside_region || pthread_mutex_trylock(&owner) != 0) {
    run_alone(body, arguments);
    return;
  }
  run_with_team(body, arguments, threads);
  pthread_mutex_unlock(&owner);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// Returns the body's entry of the profile, or NULL where there is none.
static profile_t *profile_of(body_t body) {
  profile_t *entries = atomic_load_explicit(&profile, memory_order_relaxed);
  if (entries == NULL) return NULL;
  int capacity = atomic_load(&profile_capacity);
  for (int i = 0; i < capacity; i++) {
    if (entries[i].body == NULL) entries[i].body = body;
    if (entries[i].body == body) return &entries[i];
  }
  return NULL;
}

typedef struct {
  body_t body;
  void *arguments;
  profile_t *entry;
} timed_t;

static void run_timed(int32_t *thread, int32_t *bound_thread, void *argument) {
  timed_t *timed = argument;
  uint64_t start = now_ns();
  timed->body(thread, bound_thread, timed->arguments);
  if (thread_id == 0) timed->entry->own_ns += now_ns() - start;
}

// From now on each region adds to `entries`, a zeroed table of the caller's; NULL ends that. Not to
// be called while compiled code runs, and only one thread may call compiled code until it ends.
void aotlm_set_profile(profile_t *entries, int32_t capacity) {
  atomic_store(&profile_capacity, capacity);
  atomic_store(&profile, entries);
}

WEAK void __kmpc_fork_call(void *location, int32_t count, void *body, ...) {
  va_list list;
  va_start(list, body);
  void *arguments = count > 0 ? va_arg(list, void *) : NULL;
  va_end(list);
  if (count > 1) __builtin_trap();  // MLIR passes one structure
  profile_t *entry = profile_of((body_t)body);
  if (entry == NULL) {
    run((body_t)body, arguments);
    return;
  }
  timed_t timed = {(body_t)body, arguments, entry};
  uint64_t start = now_ns();
  run(run_timed, &timed);
  entry->region_ns += now_ns() - start;
  entry->calls++;
}

WEAK void __kmpc_barrier(void *location, int32_t thread) {
  if (team_size == 1) return;
  unsigned round = atomic_load(&barrier.value);
  if (atomic_fetch_add(&barrier_arrived, 1) == team_size - 1) {
    atomic_store(&barrier_arrived, 0);
    atomic_fetch_add(&barrier.value, 1);
    wake_sleepers(&barrier);
  } else {
    wait_while(&barrier, round);
  }
}

// Cuts the iterations *lower..*upper (inclusive; upper = lower - 1 when there are none).
WEAK void __kmpc_for_static_init_8u(void *location, int32_t thread, int32_t schedule,
                                    int32_t *is_last, uint64_t *lower, uint64_t *upper,
                                    int64_t *stride, int64_t increment, int64_t chunk) {
  uint64_t count = *upper - *lower + 1, id = (uint64_t)thread_id, size = (uint64_t)team_size;
  uint64_t share = count / size, extra = count % size;
  uint64_t begin = id * share + (id < extra ? id : extra);
  uint64_t length = share + (id < extra);
  *is_last = length > 0 && begin + length == count;
  *lower += begin;
  *upper = *lower + length - 1;
}

WEAK void __kmpc_for_static_init_4u(void *location, int32_t thread, int32_t schedule,
                                    int32_t *is_last, uint32_t *lower, uint32_t *upper,
                                    int32_t *stride, int32_t increment, int32_t chunk) {
  // A 32-bit loop without iterations has upper = lower - 1, also when lower is 0.
  uint64_t low = *lower, high = low + (uint32_t)(*upper - *lower + 1) - 1;
  int64_t step = 1;
  __kmpc_for_static_init_8u(location, thread, schedule, is_last, &low, &high, &step, 1, 0);
  *lower = (uint32_t)low;
  *upper = (uint32_t)high;
}

WEAK void __kmpc_for_static_fini(void *location, int32_t thread) {}
