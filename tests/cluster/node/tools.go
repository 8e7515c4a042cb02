//go:build tools

// Package node names the Kubernetes programs that a node needs, so that go mod tidy keeps what they
// need.
package node

import (
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
