package bench

import (
	"io"
	"net"
	"sync"

	"github.com/hashicorp/yamux"
)

// plainYamux is yamux as it comes, without its log.
func plainYamux() *yamux.Config {
	conf := yamux.DefaultConfig()
	conf.LogOutput = io.Discard
	return conf
}

// dialYamux begins a session of plain yamux with the raw peer.
func dialYamux(path string) (*yamux.Session, error) {
	conn, err := dialRaw(path, rawYamux, 0)
	if err != nil {
		return nil, err
	}
	var mux *yamux.Session
	if err = conn.send(nil); err == nil {
		mux, err = yamux.Client(conn.pipe, plainYamux())
	}
	if err != nil {
		conn.Close()
	}
	return mux, err
}

// openYamux opens a stream, which is as a connection with the raw peer.
func openYamux(mux *yamux.Session, kind byte, number int) (*rawConn, error) {
	st, err := mux.OpenStream()
	if err != nil {
		return nil, err
	}
	return newRawConn(yamuxStream{st}, kind, number), nil
}

// echoStreams returns n streams, each of which has carried one payload. They end with the session.
func echoStreams(mux *yamux.Session, n, payload int) ([]*rawConn, error) {
	return openAll(n, func() (*rawConn, error) {
		c, err := openYamux(mux, rawEcho, payload)
		if err != nil {
			return nil, err
		}
		c.buf = make([]byte, payload)
		return c, c.echo()
	})
}

// A yamuxStream is a stream whose directions end each for itself.
type yamuxStream struct{ *yamux.Stream }

// CloseWrite ends what is written: more is not done by Close of yamux.
func (s yamuxStream) CloseWrite() error { return s.Stream.Close() }

// serveYamux serves the streams of a session until it ends.
func (p *rawPeer) serveYamux(conn net.Conn) {
	mux, err := yamux.Server(conn, plainYamux())
	if err != nil {
		return
	}
	var all sync.WaitGroup
	for {
		st, err := mux.AcceptStream()
		if err != nil { // the client has gone
			break
		}
		all.Go(func() { p.converse(st) })
	}
	all.Wait()
}
