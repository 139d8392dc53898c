package socket_test

import (
	"net"
	"testing"

	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestQueuesAreWhatHasComeAndWhatThePeerHasNotRead(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	if _, err := a.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if in, out, err := socket.Queues(a); err != nil || in != 0 || out < 1000 {
		t.Errorf("who has written has %d in and %d out, %v, want 0 and 1000 or more", in, out, err)
	}
	if in, out, err := socket.Queues(b); err != nil || in != 1000 || out != 0 {
		t.Errorf("who has not read has %d in and %d out, %v, want 1000 and 0", in, out, err)
	}
	if _, err := b.Read(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	for _, end := range []*net.UnixConn{a, b} {
		if in, out, err := socket.Queues(end); err != nil || in+out != 0 {
			t.Errorf("when all is read: %d in and %d out, %v", in, out, err)
		}
	}
	a.Close()
	if _, _, err := socket.Queues(a); err == nil {
		t.Error("a closed socket has queues")
	}
	b.Close()
}
