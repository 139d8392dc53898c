package wire_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/fairlead-dev/fairlead/wire"
)

type container struct {
	Name  string     `msgpack:"n"`
	Init  *os.File   `msgpack:"i"`
	Pipes []*os.File `msgpack:"p"`
}

func TestADescriptorInAValueIsItsIndexInTheMessage(t *testing.T) {
	sent := container{Name: "web", Init: os.Stdin, Pipes: []*os.File{os.Stdout, nil, os.Stderr}}
	b, files, err := wire.MarshalFiles(sent)
	if err != nil || !slices.Equal(files, []*os.File{os.Stdin, os.Stdout, os.Stderr}) {
		t.Fatalf("%v, %v", files, err)
	}
	arrived := append(slices.Clone(files), os.NewFile(99, "not named"))
	var got container
	left, err := wire.UnmarshalFiles(b, arrived, &got)
	if err != nil || got.Init != os.Stdin || !slices.Equal(got.Pipes, sent.Pipes) || !slices.Equal(left, arrived[3:]) {
		t.Errorf("%+v, %v left, %v", got, left, err)
	}
	var some struct {
		Init *os.File `msgpack:"i"`
	}
	left, err = wire.UnmarshalFiles(b, files, &some)
	if err != nil || some.Init != os.Stdin || !slices.Equal(left, files[1:]) {
		t.Errorf("a value that takes one of three: %+v, %v left, %v", some, left, err)
	}
}

func TestAValueThatNamesAWrongDescriptorIsMalformedAndTakesNone(t *testing.T) {
	files := []*os.File{os.Stdin, os.Stdout}
	for name, value := range map[string]any{
		"one that did not come": map[string]any{"i": 2},
		"one that cannot come":  map[string]any{"i": uint64(1 << 63)},
		"one before the first":  map[string]any{"i": -1},
		"one twice":             map[string]any{"i": 1, "p": []any{0, 1}},
		"a text":                map[string]any{"i": "0"},
		"a fraction":            map[string]any{"i": 0.5},
		"a map":                 map[string]any{"i": map[string]any{}},
	} {
		b, err := wire.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		left, err := wire.UnmarshalFiles(b, files, &container{})
		if !errors.Is(err, wire.Malformed) || !slices.Equal(left, files) {
			t.Errorf("%s: %v, %d left", name, err, len(left))
		}
	}
}

func TestDescriptorsTravelOnlyInMessagesAndOnlySoMany(t *testing.T) {
	if _, err := wire.Marshal(container{Init: os.Stdin}); !errors.Is(err, wire.Unsupported) {
		t.Errorf("outside of a message: %v, want %s", err, wire.Unsupported)
	}
	if _, err := wire.Marshal(container{}); err != nil {
		t.Errorf("none: %v", err)
	}
	if _, files, err := wire.MarshalFiles(container{Pipes: slices.Repeat([]*os.File{os.Stdin}, wire.MaxFiles)}); len(files) != wire.MaxFiles || err != nil {
		t.Errorf("%d, %v, want %d", len(files), err, wire.MaxFiles)
	}
	if _, _, err := wire.MarshalFiles(container{Pipes: slices.Repeat([]*os.File{os.Stdin}, wire.MaxFiles+1)}); !errors.Is(err, wire.OverQuota) {
		t.Errorf("one more than %d: %v, want %s", wire.MaxFiles, err, wire.OverQuota)
	}
}
