package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/client"
	"github.com/fairlead-dev/fairlead/cmd/internal/console"
	"github.com/fairlead-dev/fairlead/services/network"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// privatePrefix is the network of a private broker: 4 million addresses, which cost nothing before they are held.
const privatePrefix = "10.64.0.0/10"

// A stage is the processes of one bench, and a folder for their sockets and their log.
type stage struct {
	Options
	// ctx ends with the command, and has no deadline: a call that has one costs more.
	ctx    context.Context
	cancel context.CancelCauseFunc
	forget func() bool

	folder                string
	log                   *os.File
	broker, peer, service *process // broker is nil where it is not this stage's
	brokerPID             int
	raw, endpoint         string // where the raw peer listens, and what the service serves
}

// newStage starts the processes. The stage must be closed, also when this fails.
func newStage(ctx context.Context, o Options) (*stage, error) {
	s := &stage{Options: o, endpoint: fmt.Sprintf("fairlead.bench.%d", os.Getpid())}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.forget = context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	s.progress("starting")
	var err error
	if s.folder, err = os.MkdirTemp("", "fairlead-bench-"); err != nil {
		return s, err
	}
	if s.log, err = os.OpenFile(filepath.Join(s.folder, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return s, err
	}
	s.raw = filepath.Join(s.folder, "raw.sock")
	if err = socket.CheckPath(s.raw); err != nil {
		return s, fmt.Errorf("%w; set TMPDIR to a shorter one", err)
	}
	if s.Socket == "" {
		err = s.startBroker()
	}
	if err == nil {
		err = s.findBroker()
	}
	if err != nil {
		return s, err
	}
	if s.peer, err = s.begin(roleRaw, s.raw); err != nil {
		return s, fmt.Errorf("start the raw peer: %w", err)
	}
	if s.service, err = s.begin(roleService, s.Socket, s.endpoint); err != nil {
		return s, fmt.Errorf("start the service %s: %w", s.endpoint, err)
	}
	return s, nil
}

// begin starts a role that lasts as long as the stage, and is killed as soon as that is canceled: nobody then waits for it any more.
func (s *stage) begin(args ...string) (*process, error) {
	p, err := role(s.log, args...)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(s.ctx, func() { _ = p.Process.Kill() })
	_, err = p.await(ready)
	return p, err
}

func (s *stage) startBroker() (err error) {
	s.Socket = filepath.Join(s.folder, "b.sock")
	// The folder has no service files: those of this machine are none of the bench's.
	s.broker, err = start(s.Brokerd, s.log, syscall.SIGTERM,
		"brokerd", "serve", "--socket", s.Socket, "--config-dir", s.folder, "--network", network.DefaultNetwork+"="+privatePrefix)
	return err
}

// findBroker waits for the stage's own broker, or fails where another one is not there.
func (s *stage) findBroker() error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	if s.broker != nil {
		go func() {
			select {
			case <-s.broker.ended:
				cancel(fmt.Errorf("%s ended: %v%s", s.Brokerd, s.broker.ProcessState, s.broker.complaint()))
			case <-ctx.Done():
			}
		}()
	}
	options := s.options()
	options.NoWait = s.broker == nil
	status, err := console.Ask[broker.Status](ctx, options, broker.MethodStatus, nil)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.brokerPID = status.PID
	return err
}

// options say how sessions are opened.
func (s *stage) options() client.Options { return client.Options{Socket: s.Socket, Title: "bench"} }

// dial opens a session with the service.
func (s *stage) dial() (*client.Session, error) {
	return client.Dial(s.ctx, s.endpoint, s.options())
}

// dialRaw opens a connection with the raw peer that echoes so many bytes at a time.
func (s *stage) dialRaw(payload int) (*rawConn, error) {
	c, err := dialRaw(s.raw, rawEcho, payload)
	if err == nil {
		c.buf = make([]byte, payload)
	}
	return c, err
}

// echo makes one call.
func (s *stage) echo(on *client.Session, p *packet) error {
	var reply packet
	err := on.Call(s.ctx, methodEcho, p, &reply)
	if err == nil && len(reply.Bytes) != len(p.Bytes) {
		err = fmt.Errorf("%d bytes came back, of %d", len(reply.Bytes), len(p.Bytes))
	}
	return err
}

func (s *stage) progress(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
	}
}

// close ends all processes and removes the folder.
func (s *stage) close() error {
	s.progress("stopping")
	s.forget()
	for _, p := range []*process{s.service, s.peer, s.broker} {
		if p != nil {
			p.stop()
		}
	}
	s.cancel(errors.New("the bench is over"))
	var errs []error
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.folder != "" {
		errs = append(errs, os.RemoveAll(s.folder))
	}
	return errors.Join(errs...)
}
