"""The parts that measure any workload: processes, rounds, repeats, ratios and the report."""
