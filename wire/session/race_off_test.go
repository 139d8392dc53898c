//go:build !race

package session_test

// mostAllocations is how many allocations a small typed call may cost on both sides together.
const mostAllocations = 10
