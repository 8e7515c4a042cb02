"""``make demo``: the main job, shown live and checked byte by byte."""
