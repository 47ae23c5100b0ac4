"""`EditLockMixin` for a ModelAdmin: `mixin` has the class, each other module one kind of page."""
