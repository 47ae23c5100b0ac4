"""The targets: ratios and figures that the project promises."""
