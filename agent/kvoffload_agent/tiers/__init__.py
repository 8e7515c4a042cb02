"""Tiers of chunks: host memory, through which everything passes, and what lies below it.

Bookkeeping only: a slot is a number here, and a secondary tier is whoever implements
``SecondaryTier``. Nothing in this package does I/O.
"""
