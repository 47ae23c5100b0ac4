"""Sites that serve one view under every combination of decorators, as server processes."""
