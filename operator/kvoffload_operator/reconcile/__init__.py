"""Reconcilers: gather, decide, diff, apply.

``decide`` is pure; a pass that finds nothing to change writes nothing.
"""
