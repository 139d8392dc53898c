package network

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/client"
)

// An unanswered is an Allocate that failed without an answer: its lease may be there, and nobody knows of it.
type unanswered struct {
	broker string // by the name of its socket
	token  string
}

// A backlog is what has to be withdrawn with the next requests, the oldest first: at most MaxWithdraw; then the oldest is forgotten. Its zero value is empty.
type backlog struct {
	mu   sync.Mutex
	list []unanswered
}

// unseen is the backlog of this process: a session that is lost has none to keep it.
var unseen backlog

// add takes one in.
func (b *backlog) add(u unanswered) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.list = append(b.list, u); len(b.list) > MaxWithdraw {
		b.list = slices.Delete(b.list, 0, 1)
	}
}

// of returns the tokens to withdraw at a broker.
func (b *backlog) of(broker string) (tokens []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range b.list {
		if u.broker == broker {
			tokens = append(tokens, u.token)
		}
	}
	return tokens
}

// done takes out those that were withdrawn.
func (b *backlog) done(tokens []string) {
	if len(tokens) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = slices.DeleteFunc(b.list, func(u unanswered) bool { return slices.Contains(tokens, u.token) })
}

// brokerOf returns the name of the socket by which a session was opened; empty where the kernel does not say, which is as good as a name.
func brokerOf(session *client.Session) (name string) {
	conn, err := session.SyscallConn()
	if err != nil {
		return ""
	}
	_ = conn.Control(func(fd uintptr) {
		if peer, err := unix.Getpeername(int(fd)); err == nil {
			if at, ok := peer.(*unix.SockaddrUnix); ok {
				name = at.Name
			}
		}
	})
	return name
}

// withdraw tells the service that the caller has never got the lease that it asked for with this token. The session delivers it after the
// call's cancel.
func withdraw(ctx context.Context, session *client.Session, token string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWait)
	defer cancel()
	// It fails only where the session has ended, or is stuck; then the next request says it.
	_ = session.Send(ctx, MethodWithdraw, Withdrawal{Token: token})
}
