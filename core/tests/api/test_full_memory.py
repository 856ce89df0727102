"""Programs that only caches hold give way where a device's memory is full."""

import pytest

from bringup.errors import OutOfMemoryError
from bringup.runtime import full_memory


class _Full:
    """Fails as often as asked for lack of memory."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise OutOfMemoryError(f"call {self.calls}")
        return "done"


@pytest.mark.parametrize(("failures", "calls", "cleared"), [(0, 1, 0), (1, 2, 1)])
def test_an_action_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, calls: int, cleared: int
) -> None:
    drops: list[None] = []
    monkeypatch.setattr(full_memory, "_caches", [lambda: drops.append(None)])
    action = _Full(failures)
    assert full_memory.with_room(action) == "done"
    assert (action.calls, len(drops)) == (calls, cleared)


def test_only_once() -> None:
    action = _Full(2)
    with pytest.raises(OutOfMemoryError, match="call 2"):
        full_memory.with_room(action)
    assert action.calls == 2
