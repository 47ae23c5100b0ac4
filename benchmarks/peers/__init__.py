"""The contenders, one file per library, with the same methods (`worker/contender.py`)."""
