from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("redlock_django", "0002_idempotencyrecord"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="heldlock",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": (("release_heldlock", "Can release a held lock by force"),),
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
            },
        ),
        migrations.AlterModelOptions(
            name="idempotencyrecord",
            options={
                "default_permissions": ("view",),
                "permissions": (
                    ("view_idempotency_body", "Can view the response in an idempotency record"),
                    ("resolve_idempotencyrecord", "Can resolve an uncertain request"),
                ),
                "verbose_name": "idempotency record",
                "verbose_name_plural": "idempotency records",
            },
        ),
    ]
