"""``kubectl kvoffload``: why a pod gets what it gets, and whether it is in force."""
