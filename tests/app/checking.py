"""The messages of the system checks."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.checks import run_checks


def found(
    *, deploy: bool = False, tag: str = "redlock", databases: Sequence[str] | None = None
) -> dict[str, str]:
    """Return messages with hints by check number; several of one check are joined."""
    messages: dict[str, str] = {}
    for message in run_checks(tags=[tag], include_deployment_checks=deploy, databases=databases):
        number = str(message.id).removeprefix("redlock_django.")
        text = f"{message.msg} {message.hint or ''}"
        messages[number] = f"{messages[number]}\n{text}" if number in messages else text
    return messages
