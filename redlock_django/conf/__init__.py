"""`settings.REDLOCK`: read, checked and turned into typed settings, one object per alias."""
