"""A shop whose orders must be paid once."""

from __future__ import annotations
