"""The engines' side of the agent: socket, identities, sessions."""
