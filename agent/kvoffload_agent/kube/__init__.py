"""The agent's few requests to the API server, over aiohttp."""
