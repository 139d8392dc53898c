//go:build !race

package session_test

// mostAllocations is how many allocations a small typed call may cost on both sides together.
const mostAllocations = 10

// mostIdle is how many bytes of heap and stacks an idle session may take that has served a call, with its socket.
const mostIdle = 10 << 10

// mostSlow is how many bytes of heap a great stream with a slow reader may take, both ends together.
const mostSlow = 2 << 20
