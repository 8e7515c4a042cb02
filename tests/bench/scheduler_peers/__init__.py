"""The schedulers that ``tests.bench.scheduler`` compares, behind one interface."""
