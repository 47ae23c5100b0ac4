"""Commands over disturbed links: each reply reaches its own round, and an error is detected."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from redlock_django.wire.links import link
from tests.wire import desync
from tests.wire.variants import VARIANTS

pytestmark = pytest.mark.live


@pytest.mark.parametrize("name", VARIANTS)
def test_each_reply_reaches_its_own_round(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert desync.main(["--commands", "2000", "--variant", name]) == 0
    assert f"{name}: each reply reached its own round" in capsys.readouterr().out


@pytest.mark.parametrize("name", VARIANTS)
def test_a_reply_read_for_another_round_is_detected(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = iter(range(1, 10**9))

    class Forgetful(deque[Any]):
        """The replies that a master owes; some stay among them after they have come."""

        def popleft(self) -> Any:
            owed = super().popleft()
            if next(replies) % 500 == 0:
                self.appendleft(owed)
            return owed

    monkeypatch.setattr(link, "deque", Forgetful)
    assert desync.main(["--commands", "20000", "--variant", name]) == 1
    said = capsys.readouterr().out
    # The answer to SUBSCRIBE has a message of its own.
    assert "a reply of another round" in said or "without a SUBSCRIBE" in said
