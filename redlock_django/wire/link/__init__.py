"""One master and its link: commands as bytes, the replies that it owes, what is known of it."""
