"""Copies that the agent makes for engines whose KV memory it can open.

The one place of the agent that uses the engine side: the same plans are checked by the same code
and carried out by the same kernel, whoever copies (ADR 0012).
"""
