package socket_test

import (
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
	"github.com/fairlead-dev/fairlead/wire/socket"
)

func TestAFrameThatIsThereIsReadAtOnceAndAnyOtherIsLeftWhole(t *testing.T) {
	f := frame(t, "first")
	long := frame(t, strings.Repeat("x", 2000))
	whole := f.Append(nil)
	withFile := f
	withFile.Files = 1
	malformed := append([]byte{9}, whole[1:]...)
	for _, test := range []struct {
		name  string
		comes []byte
		files int
		now   bool
	}{
		{"whole", whole, 0, true},
		{"whole, with more behind it", append(f.Append(nil), "what follows"...), 0, true},
		{"nothing", nil, 0, false},
		{"a part of the header", whole[:5], 0, false},
		{"a part of the body", whole[:len(whole)-1], 0, false},
		{"long", long.Append(nil), 0, false},
		{"with a descriptor", withFile.Append(nil), 1, false},
		{"with a descriptor that it does not say", whole, 1, false},
		{"another version", malformed, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			a, b := sockets(t)
			if len(test.comes) > 0 {
				sendRaw(t, a, test.comes, files(t, test.files)...)
			}
			a.CloseWrite()
			got, ok := socket.ReadNow(b)
			if ok != test.now || ok && !reflect.DeepEqual(got, f) {
				t.Fatalf("%+v, %t, want %t", got, ok, test.now)
			}
			want := string(test.comes)
			if ok {
				want = want[len(whole):]
			}
			if rest, err := io.ReadAll(b); err != nil || string(rest) != want {
				t.Errorf("left in the socket: %q, %v, want %q", rest, err, want)
			}
		})
	}
}

func TestWhatIsTriedIsWrittenAsFarAsTheSocketTakesIt(t *testing.T) {
	leavesNothing(t)
	a, b := sockets(t)
	f := frame(t, "with a file")
	f.Files = 1
	if n := socket.TryWrite(a, f.Append(nil), files(t, 1)...); n != wire.HeaderSize+len(f.Body) {
		t.Fatalf("%d bytes of %d", n, wire.HeaderSize+len(f.Body))
	}
	got, came, err := socket.ReadFrame(b)
	if err != nil || len(came) != 1 || !reflect.DeepEqual(got, f) {
		t.Fatalf("%+v, %d files, %v, want %+v", got, len(came), err, f)
	}
	socket.CloseFiles(came)
	for socket.TryWrite(a, make([]byte, 4096)) > 0 { // until the socket is full
	}
	closed := files(t, 1)[0]
	closed.Close()
	for name, n := range map[string]int{
		"on a full socket": socket.TryWrite(a, []byte("x")), "with a file that is closed": socket.TryWrite(b, []byte("x"), closed),
		"with no file where one is to be": socket.TryWrite(b, []byte("x"), []*os.File{nil}...),
	} {
		if n != 0 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	a.Close()
	if n := socket.TryWrite(b, []byte("x")); n != 0 {
		t.Errorf("to nobody: %d bytes", n)
	}
}
