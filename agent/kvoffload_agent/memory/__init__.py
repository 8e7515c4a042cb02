"""Host memory: what may be taken (snapshot, guard), and what was taken (segments, arena)."""
