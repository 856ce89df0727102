"""A lock of ours is free in a child, whoever held it in the parent."""

from __future__ import annotations

import os
import threading

import pytest

from bringup.locks import ProcessLock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_finds_the_lock_free() -> None:
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock._lock.acquire(timeout=5) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_lock_excludes_other_threads_and_not_its_own() -> None:
    lock, free = ProcessLock(), []
    with lock, lock:
        other = threading.Thread(target=lambda: free.append(lock._lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert free == [False]
