"""The questions that inspection asks of masters; no part of the algorithm."""
