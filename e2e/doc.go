// Package e2e holds the end-to-end tests: what the product promises, proved with its own programs as real processes, on real sockets, with real
// SIGKILLs. It has no code of its own.
//
// An ordinary run is a small one; -long has the full counts:
//
//	go test -race ./e2e
//	go test ./e2e -long -timeout 30m
package e2e
