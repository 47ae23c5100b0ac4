"""`settings.REDLOCK`: read, checked and turned into one typed object per alias."""
