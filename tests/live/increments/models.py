"""The counter; its table is made by `serving.Counters`."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Counter(models.Model):
    """A number that loses increments unless its readers and writers take turns."""

    value = models.IntegerField(default=0)

    objects: ClassVar[models.Manager[Counter]] = models.Manager()

    class Meta:
        """Ours alone."""

        db_table = "counter"

    def __str__(self) -> str:
        return str(self.value)
