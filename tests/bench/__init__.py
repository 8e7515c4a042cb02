"""``make bench``: ratios against a peer or a limit of the same run, and latencies."""
