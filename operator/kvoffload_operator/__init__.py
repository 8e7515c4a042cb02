"""The operator: compiles policies into one configuration per node."""
