"""The errors of a block whose lock was lost."""

from __future__ import annotations

import pytest

from redlock_django.exceptions import LockLost


def ends_lost() -> pytest.RaisesExc[LockLost]:
    """Return a context manager around a `with` block of a lock, which raises LockLost at its end.

    Raised inside the block, LockLost has another message.
    """
    return pytest.raises(LockLost, match="was lost before its block ended")
