package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/fairlead-dev/fairlead/wire/session"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

// drainVariable has a child of this program take bytes on descriptor 3, as its value says, instead of running tests.
const drainVariable = "FAIRLEAD_TEST_DRAIN"

func init() {
	kind := os.Getenv(drainVariable)
	if kind == "" {
		return
	}
	f := os.NewFile(3, "socket")
	conn, err := socket.FromFile(f)
	f.Close()
	if err == nil {
		err = drainAs(kind, conn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0) // os.Exit sleeps for 1 s under the race detector
}

// drainAs serves streams that are drained until the client goes: a raw socket is one.
func drainAs(kind string, conn *net.UnixConn) error {
	switch kind {
	case "raw":
		return drain(conn)
	case "yamux":
		mux, err := yamux.Server(conn, plainYamux())
		if err != nil {
			return err
		}
		for {
			st, err := mux.AcceptStream()
			if err != nil {
				return nil // the client has gone
			}
			go drain(st)
		}
	}
	h := handler{streams: streams{"drain": func(_ context.Context, st *session.Stream) error { return drain(st) }}}
	s, err := session.New(conn, session.Config{Endpoint: endpoint, Handler: h, Lane: lane})
	if err != nil {
		return err
	}
	s.Wait()
	return nil
}

// plainYamux is yamux as it comes, but for what it leaves behind.
func plainYamux() *yamux.Config {
	conf := yamux.DefaultConfig()
	conf.LogOutput = io.Discard
	conf.StreamCloseTimeout = 0 // it outlives the session by minutes, and then takes a timer of a bubble of synctest
	return conf
}

// drain reads blocks: as many bytes as the 8 before them say. It answers each with one byte.
func drain(rw io.ReadWriter) error {
	for buf := make([]byte, 64<<10); ; {
		var size [8]byte
		if _, err := io.ReadFull(rw, size[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		for left := binary.BigEndian.Uint64(size[:]); left > 0; {
			n, err := rw.Read(buf[:min(left, uint64(len(buf)))])
			if err != nil {
				return err
			}
			left -= uint64(n)
		}
		if _, err := rw.Write(size[:1]); err != nil {
			return err
		}
	}
}

// pourBlock writes a block in writes of 64 KiB, waits for its answer, and returns the bytes a second.
func pourBlock(rw io.ReadWriter, size int) (float64, error) {
	began, data := time.Now(), make([]byte, 64<<10)
	if _, err := rw.Write(binary.BigEndian.AppendUint64(nil, uint64(size))); err != nil {
		return 0, err
	}
	for left := size; left > 0; left -= len(data) {
		if _, err := rw.Write(data[:min(left, len(data))]); err != nil {
			return 0, err
		}
	}
	_, err := io.ReadFull(rw, make([]byte, 1))
	return float64(size) / time.Since(began).Seconds(), err
}

// withDrain returns a socket to a child process that drains it.
func withDrain(b *testing.B, kind string) *net.UnixConn {
	b.Helper()
	ours, theirs := sockets(b)
	f, err := theirs.File()
	theirs.Close()
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), drainVariable+"="+kind), []*os.File{f}, os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ours.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return ours
}

// What a stream carries in writes of 64 KiB beside plain yamux and a raw socket, the service in a process of its own: medians of five rounds of 32 MiB. Run it
// with -benchtime 1x.
func BenchmarkStreamBeside(b *testing.B) { b.Run(channel(), streamBeside) }

func streamBeside(b *testing.B) {
	const size = 32 << 20
	mux, err := yamux.Client(withDrain(b, "yamux"), plainYamux())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { mux.Close() })
	plain, err := mux.OpenStream()
	if err != nil {
		b.Fatal(err)
	}
	s, err := session.New(withDrain(b, "fairlead"), session.Config{Endpoint: endpoint, Opener: true, Lane: lane})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { closes(b, s) })
	ends := []io.ReadWriter{withDrain(b, "raw"), plain, open(b, s, "drain")}
	figures := map[string][]float64{}
	for b.Loop() {
		for round := range 6 { // the first is for windows and pools to grow
			var rates [3]float64
			for i, end := range ends {
				if rates[i], err = pourBlock(end, size); err != nil {
					b.Fatal(err)
				}
			}
			if round == 0 {
				continue
			}
			for i, unit := range []string{"raw-MB/s", "yamux-MB/s", "fairlead-MB/s"} {
				figures[unit] = append(figures[unit], rates[i]/1e6)
			}
			figures["of-yamux"] = append(figures["of-yamux"], rates[2]/rates[1])
			figures["of-raw"] = append(figures["of-raw"], rates[2]/rates[0])
		}
	}
	b.ReportMetric(0, "ns/op")
	for unit, list := range figures {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], unit)
	}
}
