//go:build race

package session_test

// mostAllocations is how many allocations a small typed call may cost on both sides together. With the race detector pools forget some of what they are given.
const mostAllocations = 20
