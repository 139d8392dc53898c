package socket_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func frame(t testing.TB, text string) wire.Frame {
	t.Helper()
	f, err := wire.NewFrame(wire.KindOneWay, 0, wire.Request{Method: text})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// sendRaw writes b with descriptors attached to its first byte, as no library of ours would.
func sendRaw(t testing.TB, conn *net.UnixConn, b []byte, attached ...*os.File) {
	t.Helper()
	var fds []int
	for _, f := range attached {
		fds = append(fds, int(f.Fd()))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	if n, _, err := conn.WriteMsgUnix(b, oob, nil); err != nil || n != len(b) {
		t.Fatalf("write %d bytes: %d, %v", len(b), n, err)
	}
}

// wantNext checks that conn is still usable for a whole frame.
func wantNext(t *testing.T, from, to *net.UnixConn) {
	t.Helper()
	want := frame(t, "next")
	if err := socket.WriteFrame(from, want); err != nil {
		t.Fatal(err)
	}
	if got, _, err := socket.ReadFrame(to); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("next frame: %+v, %v", got, err)
	}
}

func TestAFrameIsReadWithoutAByteOfWhatFollows(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	want := frame(t, "first")
	if _, err := a.Write(append(want.Append(nil), "what follows"...)); err != nil {
		t.Fatal(err)
	}
	if got, _, err := socket.ReadFrame(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v, want %+v", got, err, want)
	}
	rest := make([]byte, 100)
	if n, err := b.Read(rest); err != nil || string(rest[:n]) != "what follows" {
		t.Errorf("left in the socket: %q, %v", rest[:n], err)
	}
}

func TestFramesArriveWholeHoweverTheyAreCut(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	want := wire.Frame{Header: wire.Header{Kind: wire.KindReply, ID: 1, Length: wire.MaxBody}, Body: []byte(strings.Repeat("x", wire.MaxBody))}
	short := frame(t, "cut")
	go func() {
		for _, c := range short.Append(nil) {
			a.Write([]byte{c})
		}
		socket.WriteFrame(a, want)
	}()
	for _, want := range []wire.Frame{short, want} {
		if got, _, err := socket.ReadFrame(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v", got.Header, err)
		}
	}
}

func TestEndOfFileInsideAFrameIsALoss(t *testing.T) {
	leavesNothing(t)
	twelve := wire.Frame{Header: wire.Header{Kind: wire.KindReply, ID: 1, Length: 12}, Body: make([]byte, 12)} // as long as a header
	for _, f := range []wire.Frame{twelve, frame(t, "half")} {
		whole := f.Append(nil)
		for _, n := range []int{0, 1, 11, 12, 13, len(whole) - 1} {
			a, b := sockets(t)
			sendRaw(t, a, whole[:n])
			a.Close()
			want := io.ErrUnexpectedEOF
			if n == 0 {
				want = io.EOF
			}
			if _, _, err := socket.ReadFrame(b); err != want {
				t.Errorf("cut after %d of %d bytes: %v, want %v", n, len(whole), err, want)
			}
			b.Close()
		}
	}
}

func TestDescriptorsArriveWithTheirFrameAndCloseOnExec(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	for _, n := range []int{0, 1, 3, wire.MaxFiles} {
		sent := files(t, n)
		if err := socket.WriteFrame(a, frame(t, "files"), sent...); err != nil {
			t.Fatal(err)
		}
		f, got, err := socket.ReadFrame(b)
		if err != nil || len(got) != n || int(f.Files) != n {
			t.Fatalf("%d descriptors: %d arrived, %v", n, len(got), err)
		}
		for i, f := range got {
			var there, here unix.Stat_t
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d of %d: flags %#x, %v", i, n, flags, err)
			}
			if err := errors.Join(unix.Fstat(int(sent[i].Fd()), &there), unix.Fstat(int(f.Fd()), &here)); err != nil || there.Ino != here.Ino {
				t.Errorf("descriptor %d of %d is another file's: %v", i, n, err)
			}
		}
		socket.CloseFiles(got)
	}
	if err := socket.WriteFrame(a, frame(t, "files"), files(t, wire.MaxFiles+1)...); !errors.Is(err, wire.Malformed) {
		t.Errorf("a descriptor more: %v, want %v", err, wire.Malformed)
	}
	wantNext(t, a, b)
}

func TestAClosedFileIsNotSentAndNothingHasLeft(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	list := files(t, 2)
	list[1].Close()
	if err := socket.WriteFrame(a, frame(t, "closed"), list...); err == nil {
		t.Error("a closed file was sent")
	}
	wantNext(t, a, b)
}

func TestDescriptorsThatAreNotAsManyAsTheHeaderSays(t *testing.T) {
	leavesNothing(t)
	for _, test := range []struct {
		name       string
		says, come int
		want       error
	}{
		{"one less", 2, 1, wire.Malformed},
		{"one more", 1, 2, wire.Malformed},
		{"none of one", 1, 0, wire.Malformed},
		{"one of none", 0, 1, wire.Malformed},
		{"one more than allowed", wire.MaxFiles, wire.MaxFiles + 1, wire.Malformed},
		{"many more than there is room for", wire.MaxFiles, 100, wire.Malformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			f := frame(t, "count")
			f.Files = uint8(test.says)
			one := files(t, 1)[0]
			var attached []*os.File
			for range test.come {
				attached = append(attached, one)
			}
			sendRaw(t, a, f.Append(nil), attached...)
			if _, got, err := socket.ReadFrame(b); !errors.Is(err, test.want) || got != nil {
				t.Errorf("%d descriptors, %v, want %v", len(got), err, test.want)
			}
			wantNext(t, a, b)
		})
	}
}

func TestDescriptorsInLaterPartsOfAFrameAreItsOwn(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	f := frame(t, "a method of some length")
	f.Files = 3
	whole := f.Append(nil)
	list := files(t, 3)
	sendRaw(t, a, whole[:5], list[0])
	sendRaw(t, a, whole[5:20], list[1])
	sendRaw(t, a, whole[20:], list[2])
	after := frame(t, "after")
	after.Files = 1
	sendRaw(t, a, after.Append(nil), list[0])
	for _, n := range []int{3, 1} {
		_, got, err := socket.ReadFrame(b)
		if err != nil || len(got) != n {
			t.Fatalf("%d descriptors, %v, want %d", len(got), err, n)
		}
		socket.CloseFiles(got)
	}
}

func TestDescriptorsOfAFrameThatIsNeverWholeAreClosed(t *testing.T) {
	leavesNothing(t)
	f := frame(t, "never whole")
	f.Files = 1
	whole := f.Append(nil)
	garbage := append([]byte{9}, whole[1:]...)
	for _, sent := range [][]byte{whole[:5], whole[:12], whole[:20], garbage} {
		a, b := sockets(t)
		sendRaw(t, a, sent, files(t, 1)...)
		a.Close()
		if _, got, err := socket.ReadFrame(b); err == nil || got != nil {
			t.Errorf("%d bytes: %d descriptors, %v", len(sent), len(got), err)
		}
		b.Close()
	}
}

// At the limit of open files the kernel cuts off the descriptors and passes the data on.
func TestTooManyOpenFilesFailsThatFrameOnly(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=few files", noSleep)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// fewFiles runs in a child, whose limit it may lower.
func fewFiles() {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		fail("%v", err)
	}
	var ends []*net.UnixConn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := socket.FromFile(f)
		if err != nil {
			fail("%v", err)
		}
		f.Close()
		ends = append(ends, c)
		c.SetDeadline(time.Now().Add(10 * time.Second))
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		fail("%v", err)
	}
	list := []*os.File{null, null, null, null}
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			fail("%v", err)
		}
		return len(entries)
	}
	f, _ := wire.NewFrame(wire.KindOneWay, 0, wire.Request{Method: "m"})
	before := count()
	few := uint64(before - 1 + 2) // the folder's own descriptor is closed again; there is room for two
	limit := func(files uint64) { // which also limits what an ordinary user may have in flight
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: 1000}); err != nil {
			fail("%v", err)
		}
	}
	for range 3 {
		limit(1000)
		if err := socket.WriteFrame(ends[0], f, list...); err != nil {
			fail("%v", err)
		}
		limit(few)
		if _, got, err := socket.ReadFrame(ends[1]); !errors.Is(err, wire.OverQuota) || got != nil {
			fail("%d descriptors, %v, want %v", len(got), err, wire.OverQuota)
		}
		if n := count(); n != before {
			fail("%d descriptors are open, and %d were before", n, before)
		}
	}
	limit(1000)
	if err := socket.WriteFrame(ends[0], f, null); err != nil {
		fail("%v", err)
	}
	limit(few)
	if _, got, err := socket.ReadFrame(ends[1]); err != nil || len(got) != 1 {
		fail("afterwards: %d descriptors, %v", len(got), err)
	}
}

// guard: what readFull keeps of descriptors. A frame has up to 64 KiB, and each of its bytes may come with 253.
func TestDescriptorsOfAFrameByTheHundredDoNotPileUp(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	f := wire.Frame{Header: wire.Header{Kind: wire.KindOpen, Length: 1000}, Body: make([]byte, 1000)}
	whole, some := f.Append(nil), files(t, 10)
	before, most := len(descriptors(t)), 0
	read := make(chan error, 1)
	go func() {
		_, got, err := socket.ReadFrame(b)
		socket.CloseFiles(got)
		read <- err
	}()
	const parts = 200
	for i := range parts {
		sendRaw(t, a, whole[i:i+1], some...)
		most = max(most, len(descriptors(t))-before)
	}
	sendRaw(t, a, whole[parts:])
	if err := <-read; !errors.Is(err, wire.Malformed) {
		t.Errorf("it is read: %v, want %s", err, wire.Malformed)
	}
	if most > 5*wire.MaxFiles {
		t.Errorf("%d descriptors were open at a time", most)
	}
}

// guard: SO_LINGER in Discard, empty in Drop, and mostRights. To close the last copy of a TCP socket waits as long as its sender has said, here for a minute.
func TestNobodyWaitsForAReceivedSocketThatLingers(t *testing.T) {
	for name, receive := range map[string]func(t *testing.T, f *os.File) (letGo func()){
		"discarded": func(_ *testing.T, f *os.File) func() { return func() { socket.Discard([]*os.File{f}) } },
		"in the queue of a socket that is dropped": func(t *testing.T, f *os.File) func() {
			a, b := sockets(t)
			sendRaw(t, a, []byte("x"))
			sendRaw(t, a, []byte("x"), f)
			f.Close()
			return func() { socket.Drop(b) }
		},
		"behind more than a frame may have": func(t *testing.T, f *os.File) func() {
			a, b := sockets(t)
			sendRaw(t, a, frame(t, "").Append(nil), append(files(t, 40), f)...)
			f.Close()
			return func() { socket.ReadFrame(b) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			letGo, closed := receive(t, lingering(t)), make(chan struct{})
			go func() { letGo(); close(closed) }()
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Error("it is not closed within 20 s")
			}
		})
	}
}

// lingering returns a TCP socket whose last copy takes a minute to close.
func lingering(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for err == nil { // until nobody takes more: the peer reads nothing
		_, err = c.Write(make([]byte, 1<<20))
	}
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetNonblock(int(fd), false), unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}))
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return f
}
