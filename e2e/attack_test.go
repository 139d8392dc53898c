package e2e_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// The endpoints of a service that is attacked: the one at which it is, and the one at which it is asked what that costs.
const (
	targetEndpoint  = "com.example.target"
	measureEndpoint = "com.example.measure"
)

// A cost is what a process takes of the machine.
type cost struct {
	Memory      int64 `msgpack:"m"` // bytes that the Go runtime has and has not given back, after a collection
	Goroutines  int   `msgpack:"g"`
	Descriptors int   `msgpack:"d"`
}

// measure collects all garbage first.
func measure(context.Context, any) (cost, error) {
	debug.FreeOSMemory()
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	open, err := os.ReadDir("/proc/self/fd")
	return cost{int64(samples[0].Value.Uint64() - samples[1].Value.Uint64()), runtime.NumGoroutine(), len(open)}, err
}

// playTarget serves targetEndpoint and measureEndpoint until its standard input ends.
func playTarget([]string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { io.Copy(io.Discard, os.Stdin); cancel() }()
	big := make([]byte, wire.MaxLarge-16)
	target, measuring := services.NewMux(), services.NewMux()
	services.Handle(target, "echo", func(_ context.Context, v wire.Raw) (wire.Raw, error) { return v, nil })
	services.Handle(target, "big", func(_ context.Context, n int) ([]byte, error) { return big[:n], nil })
	services.Handle(target, "block", func(ctx context.Context, _ wire.Raw) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
	services.HandleOneWay(target, "hold", func(ctx context.Context, _ wire.Raw) error { <-ctx.Done(); return nil })
	services.HandleStream(target, "stall", func(ctx context.Context, _ *session.Stream) error { <-ctx.Done(); return nil })
	services.HandleStream(target, "sink", func(_ context.Context, s *session.Stream) error { _, err := io.Copy(io.Discard, s); return err })
	services.Handle(measuring, "measure", measure)
	return services.Server{
		Endpoints: map[string]*services.Mux{targetEndpoint: target, measureEndpoint: measuring}, Ready: func() { fmt.Println("ready") },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}.Serve(ctx)
}

// A hostile is the client's end of a session, by hand.
type hostile struct {
	conn   *net.UnixConn
	stream uint32 // the last one that it opened
	id     uint32 // of the last request
	full   bool   // the other end takes no more, or has ended
}

// openHostile opens a session with an endpoint of the broker that FAIRLEAD_SOCKET names.
func openHostile(endpoint string) (*hostile, error) {
	path, err := socket.Path("")
	if err != nil {
		return nil, err
	}
	conn, _, err := socket.Connect(context.Background(), path)
	if err != nil {
		return nil, err
	}
	open, err := wire.NewFrame(wire.KindOpen, 0, wire.Open{Endpoint: endpoint, Features: []string{wire.FeatureLane}})
	if err == nil {
		err = socket.WriteFrame(conn, open)
	}
	for err == nil {
		var f wire.Frame
		var files []*os.File
		f, files, err = socket.ReadFrame(conn)
		socket.CloseFiles(files)
		if f.Kind == wire.KindAccepted {
			return &hostile{conn: conn, stream: 1<<32 - 1}, err
		}
		if err == nil && f.Kind != wire.KindRouted {
			err = fmt.Errorf("opened %s: a %v", endpoint, f.Kind)
		}
	}
	conn.Close()
	return nil, err
}

// send writes b, and reports false when the other end takes no more of it, or has ended: from then on it writes nothing.
func (h *hostile) send(b []byte) bool {
	if h.full {
		return false
	}
	h.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	_, err := h.conn.Write(b)
	h.full = err != nil
	return !h.full
}

// message returns a request or one-way message whose value has so many bytes, at least 8.
func (h *hostile) message(kind wire.Kind, method string, size int) []byte {
	value := binary.BigEndian.AppendUint32([]byte{0xc6}, uint32(size-5)) // a bin
	return h.request(kind, wire.Request{Method: method, Value: append(value, make([]byte, size-5)...)}, 0, 0)
}

// request returns a request or one-way message.
func (h *hostile) request(kind wire.Kind, r wire.Request, flags, files uint8) []byte {
	f, err := wire.NewFrame(kind, 0, r)
	if err != nil {
		panic(err) // a test asks for what is too long
	}
	if kind == wire.KindRequest {
		h.id++
		f.ID = h.id
	}
	f.Flags, f.Files = flags, files
	return f.Append(nil)
}

// mux returns a frame of yamux.
func mux(kind byte, flags uint16, id, length uint32, body ...byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	return append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, id), length), body...)
}

// open returns the frames that open a stream with data.
func (h *hostile) open(data []byte) []byte {
	h.stream += 2
	b := mux(1, 1, h.stream, 0)
	for len(data) > 0 {
		n := min(len(data), 32<<10)
		b, data = append(b, mux(0, 0, h.stream, uint32(n), data[:n]...)...), data[n:]
	}
	return b
}

// The attacks on a session, by name. Each does what it can until the other end takes no more.
var attacks = map[string]func(h *hostile){
	"unread streams": func(h *hostile) {
		begin, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: "stall"})
		data := begin.Append(nil)
		for range 3 {
			data = wire.Frame{Header: wire.Header{Kind: wire.KindData, Length: wire.MaxBody}, Body: make([]byte, wire.MaxBody)}.Append(data)
		}
		for range 200 {
			if !h.send(h.open(data)) {
				return
			}
		}
	},
	"unread items": func(h *hostile) { // of a streaming call of the broker's, which takes none
		begin, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: broker.MethodMonitor, Value: wire.Raw{0x80}})
		data := begin.Append(nil)
		for range 2 {
			data = wire.Frame{Header: wire.Header{Kind: wire.KindItem, Length: 60_000}, Body: make([]byte, 60_000)}.Append(data)
		}
		for range 200 {
			if !h.send(h.open(data)) {
				return
			}
		}
	},
	"streams that say nothing": func(h *hostile) {
		for range 1000 {
			if !h.send(h.open(nil)) {
				return
			}
		}
	},
	"bursts on streams": func(h *hostile) { // their buffers stay with them
		begin, _ := wire.NewFrame(wire.KindStream, 0, wire.Stream{Method: "sink"})
		data := wire.Frame{Header: wire.Header{Kind: wire.KindData, Length: 60_000}, Body: make([]byte, 60_000)}.Append(begin.Append(nil))
		for range 250 {
			if !h.send(h.open(data)) {
				return
			}
		}
	},
	"maximal bodies": func(h *hostile) {
		for range 33 {
			h.send(h.message(wire.KindRequest, "block", 65_000))
		}
		for range 15 {
			h.send(h.message(wire.KindOneWay, "hold", 65_000))
		}
	},
	"open large calls": func(h *hostile) { // whose values never come whole, and fit into a stream's window
		const size = 250_000
		for range 8 {
			h.send(h.request(wire.KindRequest, wire.Request{Method: "block", Length: size}, wire.FlagLarge, 0))
			body := binary.BigEndian.AppendUint32(wire.Header{Kind: wire.KindLarge, ID: h.id, Length: size}.Append(nil), 0xc6000000)
			h.send(h.open(append(body, make([]byte, size-100)...)))
		}
	},
	"queued replies": func(h *hostile) {
		for range 150 {
			h.send(h.request(wire.KindRequest, wire.Request{Method: "big", Value: wire.Raw{0xcd, 0xea, 0x60}}, 0, 0)) // 60,000 bytes
		}
	},
	"queued large replies": func(h *hostile) {
		for range 32 {
			h.send(h.request(wire.KindRequest, wire.Request{Method: "big", Value: wire.Raw{0xce, 0, 0x3f, 0, 0}}, 0, 0)) // nearly 4 MiB
		}
	},
	"pings": func(h *hostile) {
		for range 100 {
			if !h.send(repeat(mux(2, 1, 0, 7), 1000)) {
				return
			}
		}
	},
	"descriptors": func(h *hostile) {
		null, err := os.Open(os.DevNull)
		if err != nil {
			panic(err)
		}
		defer null.Close()
		var sixteen []int
		for range wire.MaxFiles {
			sixteen = append(sixteen, int(null.Fd()))
		}
		for range 4 {
			h.conn.WriteMsgUnix(h.request(wire.KindRequest, wire.Request{Method: "block"}, 0, wire.MaxFiles), unix.UnixRights(sixteen...), nil)
		}
	},
	"half a frame": func(h *hostile) {
		b := h.message(wire.KindRequest, "block", 65_000)
		h.send(b[:len(b)-1])
	},
}

func repeat(b []byte, n int) (all []byte) {
	for range n {
		all = append(all, b...)
	}
	return all
}

// playAttacker attacks its first argument, an endpoint, with the attacks that its second one names, over one session, and keeps what it has until its standard
// input ends.
func playAttacker(args []string) error {
	h, err := openHostile(args[0])
	if err != nil {
		return err
	}
	defer h.conn.Close()
	for name := range strings.SplitSeq(args[1], ",") {
		attack := attacks[name]
		if attack == nil {
			return errors.New("no such attack")
		}
		attack(h)
	}
	fmt.Println("holding")
	io.Copy(io.Discard, os.Stdin)
	return nil
}
