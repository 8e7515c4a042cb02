"""The device plugin: kubelet mounts the agent's socket into pods that ask for it.

A program of its own beside the agent, since only root may talk to kubelet and the agent, which
engines talk to, is nobody (docs/adr/0011).
"""
