"""Models whose rows are edited by two editors: plain, with an own version, inherited, fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.core.files.storage import InMemoryStorage
from django.db import models

from redlock_django.fenced import FencedModel


class Row(models.Model):
    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return ""


class Tag(Row):
    name = models.CharField(max_length=20)

    class Meta:
        app_label = "edited"

    def __str__(self) -> str:
        return self.name


class Article(Row):
    STATES = (("draft", "Draft"), ("public", "Public"))

    title = models.CharField(max_length=40)
    body = models.TextField(blank=True, default="")
    state = models.CharField(max_length=8, choices=STATES, default="draft")
    price = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    extra = models.JSONField(default=dict, blank=True)
    data = models.BinaryField(null=True)
    tags = models.ManyToManyField(Tag, blank=True)
    views = models.IntegerField(default=0, editable=False)
    if TYPE_CHECKING:
        paragraphs: Any

    class Meta:
        app_label = "edited"

    def __str__(self) -> str:
        return self.title


class Paragraph(Row):
    article = models.ForeignKey(Article, models.CASCADE, related_name="paragraphs")
    text = models.CharField(max_length=40)
    tags = models.ManyToManyField(Tag, blank=True)

    class Meta:
        app_label = "edited"

    def __str__(self) -> str:
        return self.text


class LongArticle(Article):
    """Its row is in two tables."""

    pages = models.IntegerField(default=1)

    class Meta:
        app_label = "edited"


class ProxyArticle(Article):
    """Its rows are those of Article."""

    class Meta:
        app_label = "edited"
        proxy = True


class Versioned(Row):
    title = models.CharField(max_length=40)
    version = models.IntegerField(default=0, editable=False)

    class Meta:
        app_label = "edited"

    def __str__(self) -> str:
        return self.title


class Country(Row):
    code = models.CharField(max_length=2, primary_key=True)
    name = models.CharField(max_length=40)

    class Meta:
        app_label = "edited"

    def __str__(self) -> str:
        return self.name


class Territory(Versioned, Country):
    """Its row is in three tables."""

    class Meta:
        app_label = "edited"


class Seal(Row):
    """Its primary key is that of the row to which it belongs."""

    versioned = models.OneToOneField(Versioned, models.CASCADE, primary_key=True)
    text = models.CharField(max_length=40)

    class Meta:
        app_label = "edited"

    def __str__(self) -> str:
        return self.text


class Shelf(Row):
    """Its tags name it by another field than its primary key."""

    code = models.CharField(max_length=2, primary_key=True)
    number = models.IntegerField(unique=True)
    tags = models.ManyToManyField(Tag, through="ShelfTag")

    class Meta:
        app_label = "edited"


class ShelfTag(Row):
    shelf = models.ForeignKey(Shelf, models.CASCADE, to_field="number")
    tag = models.ForeignKey(Tag, models.CASCADE)

    class Meta:
        app_label = "edited"


class Picture(Row):
    title = models.CharField(max_length=40)
    image = models.ImageField(width_field="width", editable=False)
    width = models.IntegerField(editable=False, default=1)
    scan = models.FileField(storage=InMemoryStorage(), blank=True)

    class Meta:
        app_label = "edited"


class FencedArticle(FencedModel):
    title = models.CharField(max_length=40)

    class Meta:
        app_label = "edited"


MODELS = [
    Tag, Article, Paragraph, LongArticle, Versioned, Country, Territory, Seal, Shelf, ShelfTag,
    Picture, FencedArticle,
]  # fmt: skip
