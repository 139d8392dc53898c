//go:build race

package session_test

// mostAllocations is how many allocations a small typed call may cost on both sides together. With the race detector pools forget some of what they are given.
const mostAllocations = 20

// mostIdle is how many bytes of heap and stacks an idle session may take that has served a call, with its socket. The race detector makes stacks larger.
const mostIdle = 20 << 10

// mostSlow is how many bytes of heap a great stream with a slow reader may take, both ends together. With the race detector pools forget some of what they are
// given, so that buffers of 64 KiB are made beside it again and again.
const mostSlow = 4 << 20
