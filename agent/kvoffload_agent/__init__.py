"""The node agent: decides loads and stores, and owns the tiers they use."""
