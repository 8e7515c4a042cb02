"""The local disk tier: chunks in pack files, one directory for each partition."""
