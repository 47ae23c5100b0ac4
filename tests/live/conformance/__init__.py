"""`python -m tests.live.conformance`: two libraries of others under the conformance runner."""
