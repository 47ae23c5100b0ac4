"""What our system checks say."""

from __future__ import annotations

from collections.abc import Sequence

from django.core.checks import run_checks


def found(
    *, deploy: bool = False, tag: str = "redlock", databases: Sequence[str] | None = None
) -> dict[str, str]:
    """The messages of our checks with their hints, by number; several of one are joined."""
    messages: dict[str, str] = {}
    for message in run_checks(tags=[tag], include_deployment_checks=deploy, databases=databases):
        number = str(message.id).removeprefix("redlock_django.")
        told = f"{message.msg} {message.hint or ''}"
        messages[number] = f"{messages[number]}\n{told}" if number in messages else told
    return messages
