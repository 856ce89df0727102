from __future__ import annotations

import threading

from bringup.bounded import BoundedDict


def test_the_oldest_go() -> None:
    kept: BoundedDict[int, str] = BoundedDict(3)
    assert [kept.add(n, str(n)) for n in (1, 2, 3)] == [[], [], []]
    assert kept.add(4, "4") == ["1"]
    assert dict(kept) == {2: "2", 3: "3", 4: "4"}


def test_an_entry_that_is_set_again_takes_no_place() -> None:
    kept: BoundedDict[int, str] = BoundedDict(2)
    kept.add(1, "a")
    kept.add(2, "b")
    assert kept.add(1, "c") == []
    assert dict(kept) == {1: "c", 2: "b"}


def test_a_smaller_limit_holds_from_the_next_entry_on() -> None:
    kept: BoundedDict[int, int] = BoundedDict(4)
    for n in range(4):
        kept.add(n, n)
    kept.limit = 0
    assert kept.add(9, 9) == [0, 1, 2, 3, 9]
    assert not kept


def test_threads_may_add_at_once() -> None:
    kept: BoundedDict[int, int] = BoundedDict(8)
    gone: list[int] = []

    def work(first: int) -> None:
        for n in range(first, first + 2000):
            gone.extend(kept.add(n, n))

    threads = [threading.Thread(target=work, args=(10_000 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 8
    assert len(gone) == len(set(gone)) == 4 * 2000 - 8
    assert gone
