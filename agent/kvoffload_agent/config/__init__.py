"""Where the agent's configuration comes from: a directory of YAML, or its own KVOffloadNode."""
