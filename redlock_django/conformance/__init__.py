"""Ask a service of any language whether it honours Idempotency-Key.

    python -m redlock_django.conformance https://api.example.com --config cases.toml

Nothing in this package imports Django or any other part of redlock_django: it needs Python alone.
The rules are those of draft-ietf-httpapi-idempotency-key-header-07, and what a client has to know
beside them. docs/how-to/conformance.md describes the configuration.
"""
