"""Faults of the thread pool, by hand: a text of `threads.c`, and what is put in its place."""

from __future__ import annotations

from typing import Final

from tests.mutation.operators import Mutant

PATH: Final = "src/aotlm/codegen/threads.c"
# A fault that only wastes time is not here, unless a test can tell it without a clock's luck.
FAULTS: Final = (
    # waiting and waking
    ("if (atomic_load_explicit(&crowded, memory_order_relaxed)) return 0;", ""),
    ("if (now != old) {", "if (now == old) {"),
    ("while ((now = atomic_load(&signal->value)) == old) futex", "if ((now = old) == old) futex"),
    ("LONG_SPINS = 4000", "LONG_SPINS = 1 << 30"),
    ("atomic_fetch_add(&signal->sleepers, 1);", ""),
    ("if (atomic_load(&signal->sleepers)) futex", "if (!atomic_load(&signal->sleepers)) futex"),
    ("FUTEX_WAKE, INT_MAX", "FUTEX_WAKE, 0"),
    # a region
    ("int32_t thread = id;", "int32_t thread = 0;"),
    ("thread_id = id;", ""),
    ("  team_size = size;\n  team.body", "  team.body"),
    ("run_body(id, team.size);", "run_body(id, team.size + 1);"),
    ("fetch_sub(&unfinished.value, 1) == 1)", "fetch_sub(&unfinished.value, 1) == 2)"),
    ("  inside_region = 1;\n  // The owner", "  // The owner"),
    ("team.arguments = arguments;", ""),
    ("team.size = size;", "team.size = count;"),
    ("(unsigned)size - 1);", "(unsigned)size);"),
    ("(unsigned)size - 1);", "(unsigned)size - 2);"),
    ("for (int id = 1; id < size; id++)", "for (int id = 1; id < size - 1; id++)"),
    ("for (int id = 1; id < size; id++)", "for (int id = 1; id <= size; id++)"),
    ("    wake_sleepers(&tickets[id]);\n", ""),
    ("inside_region = 1;\n  run_body(0, size);", "run_body(0, size);"),
    ("run_body(0, size);\n  inside_region = 0;", "run_body(0, size);"),
    ("  team_size = 1;\n  for (unsigned left", "  for (unsigned left"),
    ("atomic_load(&unfinished.value)) != 0;", "atomic_load(&unfinished.value)) > 1;"),
    # running alone
    ("if (threads == 1 || inside_region ||", "if (threads == 1 ||"),
    ("pthread_mutex_trylock(&owner) != 0", "0"),
    ("  pthread_mutex_unlock(&owner);\n", ""),
    ("thread_id = 0;\n  team_size = 1;", "team_size = 1;"),
    ("thread_id = 0;\n  team_size = 1;", "thread_id = 0;"),
    ("thread_id = id_before;", ""),
    ("team_size = size_before;", ""),
    ("inside_region = inside_before;", ""),
    # starting workers
    ("int known = sched_getaffinity", "int known = 0 && sched_getaffinity"),
    ("CPU_COUNT(&allowed) : 1", "CPU_COUNT(&allowed) + 1 : 1"),
    ("pthread_atfork(NULL, NULL, forget_workers);", ""),
    ("  pthread_mutex_init(&owner, NULL);\n", ""),
    ("atomic_store(&tickets[i].value, 0);", ""),
    ("atomic_store(&unfinished.value, 0);", ""),
    ("atomic_store(&barrier_arrived, 0);\n  started = 1;", "started = 1;"),
    ("  started = 1;\n", ""),
    ("if (started >= count) return count;", "if (started > count) return count;"),
    ("if (started >= count) return count;", "if (started >= count) return started;"),
    ("  pthread_sigmask(SIG_SETMASK, &all, &before);\n", ""),
    ("  pthread_sigmask(SIG_SETMASK, &before, NULL);\n", ""),
    (", PTHREAD_CREATE_DETACHED);", ", PTHREAD_CREATE_JOINABLE);"),
    ("WORKER_STACK_BYTES = 1 << 20", "WORKER_STACK_BYTES = 1 << 14"),
    ("while (started < count) {", "while (started <= count) {"),
    ("return started < count ? started : count;", "return count;"),
    # settings
    ("MAX_THREADS = 256", "MAX_THREADS = 255"),
    ("if (threads < 0) threads = 0;", ""),
    ("threads > MAX_THREADS ? MAX_THREADS : threads", "threads"),
    ("  count_cpus();\n  if (threads", "  if (threads"),
    ("if (wanted) return wanted;", ""),
    ("available > MAX_THREADS ? MAX_THREADS : available", "available"),
    # the profile
    ("i < capacity", "i <= capacity"),
    ("i < capacity", "i < capacity - 1"),
    ("if (entries[i].body == NULL) entries[i].body = body;", ""),
    ("if (entries[i].body == body) return", "return"),
    ("if (thread_id == 0) timed->entry", "timed->entry"),
    ("own_ns += now_ns() - start", "own_ns = now_ns() - start"),
    ("region_ns += now_ns() - start", "region_ns = now_ns() - start"),
    ("entry->calls++;", ""),
    ("* 1000000000u", "* 1000000u"),
    # entry points of OpenMP
    ("count > 0 ? va_arg", "count > 1 ? va_arg"),
    ("if (count > 1) __builtin_trap();", ""),
    ("if (team_size == 1) return;", ""),
    ("== team_size - 1) {", "== team_size) {"),
    ("    atomic_store(&barrier_arrived, 0);\n", ""),
    ("    wake_sleepers(&barrier);\n", ""),
    ("    wait_while(&barrier, round);\n", ""),
    ("*upper - *lower + 1, id", "*upper - *lower, id"),
    ("(id < extra ? id : extra)", "(id < extra ? extra : id)"),
    ("uint64_t length = share + (id < extra);", "uint64_t length = share + (id <= extra);"),
    ("*is_last = length > 0 &&", "*is_last ="),
    ("begin + length == count", "begin + length != count"),
    ("*upper = *lower + length - 1;", "*upper = *lower + length;"),
    ("low + (uint32_t)(*upper - *lower + 1) - 1", "*upper"),
    ("*lower = (uint32_t)low;", ""),
    ("*upper = (uint32_t)high;", ""),
)  # fmt: skip


def mutants(source: str) -> list[Mutant]:
    """Return the faults of the table.

    Raises:
        ValueError: a text is not there exactly once.
    """
    found = []
    for old, new in FAULTS:
        if source.count(old) != 1:
            raise ValueError(f"{PATH} has {old!r} {source.count(old)} times, not once; mend FAULTS")
        begin = len(source[: source.index(old)].encode())
        found.append(Mutant(PATH, begin, begin + len(old.encode()), new))
    return found
