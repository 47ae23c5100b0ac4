"""The contenders, one file for each library: the same five words (`worker/contender.py`)."""
