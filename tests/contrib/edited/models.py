"""Models that two users edit: with tags, a file, parents, proxies and keys of several kinds."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.core.files.storage import InMemoryStorage
from django.db import models


class Row(models.Model):
    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        abstract = True
        app_label = "edited"

    def __str__(self) -> str:
        return str(self.pk)


class Tag(Row):
    name = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.name


class Article(Row):
    title = models.CharField(max_length=40)
    slug = models.CharField(max_length=40, unique=True, null=True, blank=True)
    scan = models.FileField(storage=InMemoryStorage(), blank=True)
    tags = models.ManyToManyField(Tag, blank=True)

    def __str__(self) -> str:
        return self.title


class Paragraph(Row):
    article = models.ForeignKey(Article, models.CASCADE, related_name="paragraphs")
    text = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.text


class Link(Row):
    """It refers to an article by another field than its primary key."""

    article = models.ForeignKey(Article, models.CASCADE, to_field="slug")


class LongArticle(Article):
    """Its rows are in two tables."""

    pages = models.IntegerField(default=1)


class ProxyArticle(Article):
    class Meta(Row.Meta):
        proxy = True


class Named(Row):
    """Its primary key is any text."""

    name = models.CharField(max_length=300, primary_key=True)
    text = models.CharField(max_length=40, blank=True)


class Numbered(Row):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    text = models.CharField(max_length=40)


MODELS = [Tag, Article, Paragraph, Link, LongArticle, Named, Numbered]
