"""Judgements of replies and clocks: which masters are late, whose clock has stepped."""
