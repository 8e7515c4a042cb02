"""A real Kubernetes control plane from pinned Go modules: see README.md beside this file."""
