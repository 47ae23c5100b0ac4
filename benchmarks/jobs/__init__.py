"""The jobs of workers, coroutine functions of a `Bench`: written once for both APIs."""
