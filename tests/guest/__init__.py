"""A small virtual machine with a pure cgroup v2 tree, for the memory tests that need one."""
