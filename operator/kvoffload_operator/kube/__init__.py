"""Talking to the API server: access, requests, watches and informers.

Nothing in here knows what a policy is.
The full ``kubernetes`` client is not used for this:
its watch fails on long lines, and its informer neither pages nor notices a half-open connection.
"""
