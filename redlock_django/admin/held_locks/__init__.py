"""The admin of held locks: `pages` has what Django loads, the rest is loaded with a page."""
