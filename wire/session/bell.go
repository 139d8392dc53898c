package session

// A bell tells all who wait for a change of what a mutex guards, as it guards the bell. It takes memory only while somebody waits.
type bell struct{ rings chan struct{} }

// wait returns a channel that is closed at the next ring.
func (b *bell) wait() <-chan struct{} {
	if b.rings == nil {
		b.rings = make(chan struct{})
	}
	return b.rings
}

// ring wakes all who wait.
func (b *bell) ring() {
	if b.rings != nil {
		close(b.rings)
		b.rings = nil
	}
}
