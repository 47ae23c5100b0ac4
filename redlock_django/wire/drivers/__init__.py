"""The drivers of the links: one for the threads of a process, one for each event loop."""
