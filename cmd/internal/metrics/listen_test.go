package metrics_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead-dev/fairlead/cmd/internal/metrics"
	"github.com/fairlead-dev/fairlead/wire"
)

func TestAPlaceIsAPathOrAnAddress(t *testing.T) {
	t.Chdir("/")
	for place, want := range map[string]string{ // empty: it is refused
		"unix:/run/m.sock": "unix:/run/m.sock", "unix:m": "unix:/m", "127.0.0.1:9464": "127.0.0.1:9464", "[::1]:9464": "[::1]:9464", ":9464": ":9464",
		"localhost:http": "localhost:http",
		"unix:":          "", "/run/m.sock": "", "9464": "", "localhost": "", "localhost:": "", "::1:9464": "", "unix:/" + strings.Repeat("m", 107): "",
	} {
		got, err := metrics.Check(place)
		if (err == nil) != (want != "") || err == nil && got != want || err != nil && !errors.Is(err, wire.Malformed) {
			t.Errorf("%q is %q, %v, want %q", place, got, err, want)
		}
	}
}

// folder returns a folder with a short path.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "m-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestTheSocketIsForItsUserAloneWhateverTheUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	at := filepath.Join(folder(t), "m")
	for range 2 {
		l, err := metrics.Listen("unix:" + at)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(at); err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%v, %v, want a socket of mode 0600", info.Mode(), err)
		}
		l.Close()
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is left behind: %v", err)
		}
	}
}

func TestASocketThatIsStaleIsReplacedAndNothingElse(t *testing.T) {
	dir := folder(t)
	at := filepath.Join(dir, "m")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if _, err := metrics.Listen("unix:" + at); !errors.Is(err, wire.Conflict) {
		t.Errorf("while somebody listens: %v, want %s", err, wire.Conflict)
	}
	stale.Close()
	l, err := metrics.Listen("unix:" + at)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(at, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.Listen("unix:" + at); !errors.Is(err, wire.Conflict) {
		t.Errorf("where a file is: %v, want %s", err, wire.Conflict)
	}
	if text, err := os.ReadFile(at); string(text) != "precious" {
		t.Errorf("the file is %q, %v", text, err)
	}
	os.Remove(at)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.Listen("unix:" + at); !errors.Is(err, wire.NotPermitted) {
		t.Errorf("where everybody may replace it: %v, want %s", err, wire.NotPermitted)
	}
}

func TestABoundedListenerAcceptsTheNextWhenOneIsClosed(t *testing.T) {
	at := filepath.Join(folder(t), "m")
	plain, err := metrics.Listen("unix:" + at)
	if err != nil {
		t.Fatal(err)
	}
	l := metrics.NewBounded(plain, 2)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	for range 3 {
		conn, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	first, second := <-accepted, <-accepted
	select {
	case <-accepted:
		t.Error("a third one is accepted")
	default:
	}
	first.Close()
	first.Close() // once more gives no place
	third := <-accepted
	l.Close()
	for range accepted {
		t.Error("one is accepted when it is closed")
	}
	second.Close()
	third.Close()
}
