import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("redlock_django", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="IdempotencyRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key_hash", models.CharField(max_length=64, unique=True, verbose_name="key hash")),
                ("fingerprint", models.CharField(max_length=64, verbose_name="fingerprint")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "running or interrupted"),
                            ("completed", "completed"),
                            ("tombstone", "tombstone"),
                            ("uncertain", "uncertain"),
                        ],
                        default="running",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("attempt", models.CharField(max_length=32, verbose_name="attempt")),
                ("user", models.CharField(blank=True, max_length=255, verbose_name="user")),
                ("method", models.CharField(max_length=10, verbose_name="method")),
                ("path", models.CharField(max_length=255, verbose_name="path")),
                (
                    "created_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now, verbose_name="created at"
                    ),
                ),
                ("completed_at", models.DateTimeField(null=True, verbose_name="completed at")),
                (
                    "expires_at",
                    models.DateTimeField(db_index=True, null=True, verbose_name="expires at"),
                ),
                ("status", models.PositiveSmallIntegerField(null=True, verbose_name="status")),
                ("headers", models.JSONField(default=list, verbose_name="headers")),
                ("body", models.BinaryField(default=b"", verbose_name="body")),
                ("messages", models.TextField(default="", verbose_name="messages")),
            ],
            options={
                "default_permissions": ("view",),
                "permissions": (
                    ("view_idempotency_body", "Can view the response in an idempotency record"),
                    ("resolve_idempotencyrecord", "Can say what became of an uncertain request"),
                ),
                "verbose_name": "idempotency record",
                "verbose_name_plural": "idempotency records",
            },
        ),
    ]
