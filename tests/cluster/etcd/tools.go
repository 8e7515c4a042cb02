//go:build tools

// Package etcd names the command that the test cluster is built from, so that go mod tidy keeps
// what it needs.
package etcd

import _ "go.etcd.io/etcd/server/v3"
