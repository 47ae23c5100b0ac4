"""Waiters: they are called by masters, and follow releases of their own process."""
