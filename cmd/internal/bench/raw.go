package bench

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
)

// What a connection of the raw peer is for. It begins with this byte and a number of 8 bytes.
const (
	rawEcho   = 'e' // as many bytes as the number says, there and back
	rawSink   = 's' // bytes until the client has finished, then how many they were
	rawHold   = 'h' // holds the number as its name: one byte, then nothing
	rawWatch  = 'w' // takes names, and answers each with one byte when nobody holds it
	rawWeight = 'm' // collects garbage and tells HeapInuse and StackInuse
	rawYamux  = 'y' // a session of plain yamux, each stream of which is as a connection
)

// A pipe is what bytes are written to.
type pipe interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
	CloseWrite() error
	Close() error
}

// A rawConn is a client's connection to the raw peer, or a stream of plain yamux.
type rawConn struct {
	pipe
	buf    []byte
	header []byte // until it has left
}

// dialRaw connects to the raw peer. What the connection is for leaves with the first bytes.
func dialRaw(path string, kind byte, number int) (*rawConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return newRawConn(conn, kind, number), nil
}

func newRawConn(over pipe, kind byte, number int) *rawConn {
	return &rawConn{pipe: over, header: binary.BigEndian.AppendUint64([]byte{kind}, uint64(number))}
}

// send sends bytes, with what the connection is for in the same write where it is the first.
func (c *rawConn) send(b []byte) error {
	if c.header != nil {
		b, c.header = append(c.header, b...), nil
	}
	_, err := c.Write(b)
	return err
}

// echo sends buf and waits for it.
func (c *rawConn) echo() error {
	if err := c.send(c.buf); err != nil {
		return err
	}
	_, err := io.ReadFull(c, c.buf)
	return err
}

// ask sends bytes and returns the number that is the answer.
func (c *rawConn) ask(b []byte) (int64, error) {
	if err := c.send(b); err != nil {
		return 0, err
	}
	return readNumber(c)
}

func readNumber(r io.Reader) (int64, error) {
	var b [8]byte
	_, err := io.ReadFull(r, b[:])
	return int64(binary.BigEndian.Uint64(b[:])), err
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// A rawPeer is the raw peer's side.
type rawPeer struct {
	mu   sync.Mutex
	held map[int64]chan struct{} // closed when its holder is gone
}

// serve serves at a path until it fails.
func (p *rawPeer) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go p.converse(conn)
	}
}

// converse serves one connection. A client that is gone is the end of it, and needs no words.
func (p *rawPeer) converse(conn net.Conn) {
	defer conn.Close()
	var kind [1]byte
	if _, err := io.ReadFull(conn, kind[:]); err != nil {
		return
	}
	n, err := readNumber(conn)
	if err != nil {
		return
	}
	switch kind[0] {
	case rawEcho:
		for b := make([]byte, n); err == nil; {
			if _, err = io.ReadFull(conn, b); err == nil {
				_, err = conn.Write(b)
			}
		}
	case rawSink:
		if n, err = drain(conn); err == nil {
			_, _ = conn.Write(number(n))
		}
	case rawHold:
		p.hold(conn, n)
	case rawWatch:
		for err == nil {
			if n, err = readNumber(conn); err == nil {
				p.wait(n)
				_, err = conn.Write([]byte{0})
			}
		}
	case rawWeight:
		_, _ = conn.Write(number(weigh()))
	case rawYamux:
		p.serveYamux(conn)
	}
}

// drain reads until the peer has finished, and returns how many bytes there were.
func drain(r io.Reader) (total int64, err error) {
	for b := make([]byte, 64<<10); ; {
		n, err := r.Read(b)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func (p *rawPeer) hold(conn net.Conn, name int64) {
	gone := make(chan struct{})
	p.mu.Lock()
	p.held[name] = gone
	p.mu.Unlock()
	_, err := conn.Write([]byte{0})
	for b := make([]byte, 1); err == nil; {
		_, err = conn.Read(b)
	}
	p.mu.Lock()
	delete(p.held, name)
	p.mu.Unlock()
	close(gone)
}

// wait returns when nobody holds the name.
func (p *rawPeer) wait(name int64) {
	p.mu.Lock()
	gone := p.held[name]
	p.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

// weigh collects all garbage, gives it back to the kernel, and returns how many bytes of heap and stacks are in use.
func weigh() int64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
