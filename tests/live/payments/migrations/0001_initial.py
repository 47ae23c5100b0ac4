import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]
    operations = [
        migrations.CreateModel(
            "Payment",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("order", models.IntegerField()),
                (
                    "user",
                    models.ForeignKey(
                        settings.AUTH_USER_MODEL, django.db.models.deletion.CASCADE, null=True
                    ),
                ),
            ],
            {"db_table": "payment"},
        ),
    ]
