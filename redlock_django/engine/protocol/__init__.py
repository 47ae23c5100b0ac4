"""Everything that is sent to a master, and what its replies mean."""
