package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// The environment of an instance that a broker has started.
const (
	ControlVariable  = "FAIRLEAD_CONTROL"  // the inherited descriptor of the control connection
	LockVariable     = "FAIRLEAD_LOCK"     // the inherited descriptor that is locked while the instance lives
	InstanceVariable = "FAIRLEAD_INSTANCE" // the instance's number
)

const (
	registerWait  = 10 * time.Second // for the broker's answer
	registerFirst = 10 * time.Millisecond
	registerMost  = 250 * time.Millisecond
)

// register registers with the broker, and begins the control session. It tries until ctx ends or the first registration is refused for good.
func (r *registrar) register(ctx context.Context) (*session.Session, error) {
	r.host.news.again(nil)
	waiting, warned := false, false // each is logged once
	for pause := registerFirst; ; pause = min(2*pause, registerMost) {
		control, err := r.attempt(ctx)
		if err == nil {
			r.registered = true
			r.reporting.Go(func() { r.report(control) })
			if r.conf.Ready != nil {
				r.conf.Ready()
			}
			return control, nil
		}
		if refusedForGood(err) && !r.registered {
			return nil, fmt.Errorf("register %s: %w", r.conf.Service, err)
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && ctx.Err() == nil && !waiting {
			waiting = true
			r.log.Info("no broker: waiting", "service", r.conf.Service, "socket", op.Addr.String(), "err", op.Err)
		}
		if code := wire.CodeOf(err); code != wire.Internal && !warned {
			warned = true
			r.log.Warn("cannot register, and go on trying", "service", r.conf.Service, "code", code, "err", err)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// attempt registers once.
func (r *registrar) attempt(ctx context.Context) (*session.Session, error) {
	conn, inherited, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	conn.SetDeadline(time.Now().Add(registerWait))
	accepted, untold, err := r.ask(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		r.host.news.again(untold)
		if inherited {
			r.log.Debug("lost the broker that started this instance", "service", r.conf.Service, "err", err)
		}
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return session.NewControl(conn, session.Config{
		Endpoint: "control", Opener: true, Handler: r.controlMux(), Send: accepted.Limits, Logger: r.log,
	}), nil
}

// connect takes the inherited control connection, once, or connects to the broker's socket, and checks that the broker is who it was.
func (r *registrar) connect(ctx context.Context) (conn *net.UnixConn, inherited bool, err error) {
	conn, err = r.inherited()
	inherited = conn != nil
	var uid uint32
	if conn == nil && err == nil {
		var path string
		if path, err = socket.Path(r.conf.Socket); err != nil {
			return nil, false, err
		}
		conn, uid, err = socket.Connect(ctx, path)
	} else if err == nil {
		uid, err = socket.PeerUID(conn)
	}
	if err != nil {
		return nil, false, err
	}
	if r.registered && uid != r.broker {
		conn.Close()
		return nil, false, wire.Errorf(wire.Unavailable, "the broker runs as uid %d, and the one before ran as %d", uid, r.broker)
	}
	r.broker = uid
	return conn, inherited, nil
}

// inherited returns the control connection that a broker gave this process, the first time it is asked for. Nothing of it is left to this process's
// children.
func (r *registrar) inherited() (*net.UnixConn, error) {
	value := os.Getenv(ControlVariable)
	if value == "" {
		return nil, nil
	}
	os.Unsetenv(ControlVariable)
	r.number, _ = strconv.ParseInt(os.Getenv(InstanceVariable), 10, 64) // a broker wrote it
	os.Unsetenv(InstanceVariable)
	if err := keepLock(); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(value)
	if err != nil {
		return nil, wire.Errorf(wire.Malformed, "%s=%s: want a descriptor's number", ControlVariable, value)
	}
	if err := socket.CloseOnExec(fd); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "control")
	defer f.Close()
	return socket.FromFile(f)
}

// keepLock keeps the inherited lock, which tells a broker that this instance lives, from the children of this process.
func keepLock() error {
	value := os.Getenv(LockVariable)
	if value == "" {
		return nil
	}
	os.Unsetenv(LockVariable)
	fd, err := strconv.Atoi(value)
	if err != nil {
		return wire.Errorf(wire.Malformed, "%s=%s: want a descriptor's number", LockVariable, value)
	}
	return socket.CloseOnExec(fd) // the descriptor stays open until this process exits
}

// ask sends the registration with the first batch of sessions, which it returns as untold if that fails.
func (r *registrar) ask(conn *net.UnixConn) (accepted wire.Accepted, untold []wire.SessionInfo, err error) {
	batch := r.host.Take()
	f, err := wire.NewFrame(wire.KindRegister, 0, wire.Register{
		Service: r.conf.Service, Instance: r.number, Endpoints: slices.Sorted(maps.Keys(r.conf.Endpoints)), Features: []string{wire.FeatureRelay}, Sessions: batch,
	})
	if err == nil {
		err = socket.WriteFirst(conn, f)
	}
	if err == nil {
		accepted, err = readAnswer(conn)
	}
	if err != nil {
		return accepted, batch, err
	}
	return accepted, nil, nil
}

// readAnswer reads the broker's answer to a registration.
func readAnswer(conn *net.UnixConn) (accepted wire.Accepted, err error) {
	f, files, err := socket.ReadFrame(conn)
	socket.Discard(files)
	if err != nil {
		return accepted, err
	}
	switch f.Kind {
	case wire.KindAccepted:
		return accepted, wire.Unmarshal(f.Body, &accepted)
	case wire.KindRefused:
		refusal, err := wire.DecodeError(f.Body)
		if err != nil {
			return accepted, err
		}
		return accepted, refusal
	}
	return accepted, wire.Errorf(wire.Malformed, "the broker answers a registration with a %v", f.Kind)
}

// controlMux serves the broker's questions.
func (r *registrar) controlMux() *Mux {
	mux := NewMux()
	mux.add(wire.MethodHandOver, method{kind: KindOneWay, serve: r.handOver})
	Handle(mux, wire.MethodInspect, func(_ context.Context, ref wire.SessionRef) (wire.Inspection, error) {
		return r.host.Inspect(ref.Session)
	})
	Handle(mux, wire.MethodTraffic, func(_ context.Context, refs wire.SessionRefs) (wire.TrafficList, error) {
		return wire.TrafficList{Traffic: r.host.Traffic(refs.Sessions)}, nil
	})
	Handle(mux, wire.MethodClose, func(ctx context.Context, ref wire.SessionRef) (any, error) {
		return nil, r.host.Close(ctx, ref.Session, ref.Text)
	})
	Handle(mux, wire.MethodStop, func(context.Context, any) (any, error) {
		r.stop()
		return nil, nil
	})
	Handle(mux, wire.MethodIdle, func(context.Context, any) (wire.Idle, error) {
		idle := r.host.endIdle()
		if idle {
			r.stop()
		}
		return wire.Idle{Ended: idle}, nil
	})
	return mux
}

// handOver takes a client's connection from the broker.
func (r *registrar) handOver(_ context.Context, m *session.Message) (any, error) {
	var o wire.HandOver
	var conn *net.UnixConn
	err := m.Decode(&o)
	if err == nil {
		if err = r.host.room(o.Socket); err == nil {
			conn, err = socket.FromFile(o.Socket)
		}
		if err != nil {
			turnAway(o.Socket, err)
		}
		o.Socket.Close()
	}
	if err == nil {
		r.host.HandOver(o, conn)
		return nil, nil
	}
	var facts wire.SessionInfo // of a session whose socket did not arrive
	if malformed := m.Decode(&facts); malformed != nil {
		return nil, malformed
	}
	r.host.unable("cannot take a connection over", "session", session.ShortID(facts.ID), "code", wire.CodeOf(err), "err", err)
	r.host.lost(wire.HandOver{Session: facts.ID, Endpoint: facts.Endpoint, Title: facts.Title, Client: facts.Client},
		wire.End{Code: wire.OverQuota, Origin: wire.Local, Text: err.Error()})
	return nil, err
}

// turnAway closes the connection of a client, and tells it why it gets no session where there is no descriptor left to make a connection of its socket.
func turnAway(client *os.File, err error) {
	f, encodeErr := wire.NewFrame(wire.KindRefused, 0, wire.Error{Code: wire.OverQuota, Text: err.Error(), Origin: wire.Peer})
	if encodeErr == nil {
		client.Write(f.Append(nil)) // a few bytes, the first on this socket but for the broker's answer
	}
	socket.Drop(client)
}
