"""redlock_django beside its peers and beside the bare wire; see README.md."""
