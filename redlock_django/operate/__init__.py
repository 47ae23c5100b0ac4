"""What operators need: which locks are held, forced release, and the health of the servers."""
