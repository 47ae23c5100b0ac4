"""Studies for maintainers, one file each: `python -m benchmarks NAME`."""
