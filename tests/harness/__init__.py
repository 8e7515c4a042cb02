"""Starts the product's real processes for the demo, the benchmarks and the tests."""
