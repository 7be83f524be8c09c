"""Run a function in a process beside this one: Python code keeps one CPU of a process busy."""

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

from aotlm.errors import AotlmError
from aotlm.support.progress import Progress

Result = TypeVar("Result")
Work = Callable[[Progress], Result]

PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>


@contextmanager
def run_forked(work: Work[Result], does: str, progress: Progress) -> Iterator[Callable[[], Result]]:
    """Start `work` in a copy of this process; yield the function that waits for its result.

    `work` gets a progress function, whose calls reach `progress`; its result is pickled. `does` is
    a verb for errors ("packs the weights"). The process never outlives the block, nor this process.

    Raises (the yielded function):
        AotlmError: the process was killed.
        Exception: what `work` raised.
    """
    context = multiprocessing.get_context("fork")  # a copy knows the model and its libraries
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender, os.getpid()), daemon=True)
    process.start()
    sender.close()
    listener = ThreadPoolExecutor(1)
    heard = listener.submit(_listen, receiver, progress)

    def result() -> Result:
        try:
            value: Result = heard.result()
        except EOFError:
            process.join()
            raise AotlmError(_ending(does, process.exitcode or 0)) from None
        return value

    try:
        yield result
    finally:
        process.kill()
        process.join()
        listener.shutdown()
        receiver.close()


def _run(work: Work[Any], sender: Connection, parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        sender.send(("done", work(lambda *step: sender.send(("progress", step)))))
    except Exception as error:
        error.add_note(traceback.format_exc())  # a pickled error has lost its traceback
        sender.send(("failed", error))


def _listen(receiver: Connection, progress: Progress) -> Any:
    while True:
        kind, value = receiver.recv()
        if kind == "done":
            return value
        if kind == "failed":
            raise value
        progress(*value)


def _ending(does: str, code: int) -> str:
    if code < 0:
        how = f"was killed ({signal.Signals(-code).name}), as happens when memory runs out"
    else:
        how = f"ended with exit code {code} before it was done"
    return f"the process that {does} {how}; make room and run the same command again"
