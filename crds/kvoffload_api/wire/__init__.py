"""The messages between an engine and the node agent, and how they are framed.

``messages`` holds the message types; ``framing`` holds the header, encoder and decoder.
Both sides import nothing else to talk to each other.
"""
