"""Partitions: whose chunks are where, how much of host memory each may use, and its growth."""
