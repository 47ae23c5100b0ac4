"""The counter; `serving.Counters` creates its table."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Counter(models.Model):
    """A number that loses increments unless they are made one after the other."""

    value = models.IntegerField(default=0)

    objects: ClassVar[models.Manager[Counter]] = models.Manager()

    class Meta:
        """The name of the table."""

        db_table = "counter"

    def __str__(self) -> str:
        return str(self.value)
