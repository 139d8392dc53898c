package wire

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// A descriptor in a value is a *os.File in Go, and on the wire its index among the descriptors of the message, from 0.
func init() { msgpack.Register((*os.File)(nil), encodeFile, decodeFile) }

// A target is what a value is encoded to, with the descriptors it names, and its encoder.
type target struct {
	encoder *msgpack.Encoder
	b       []byte
	files   []*os.File
}

func (t *target) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	return len(b), nil
}

func (t *target) WriteByte(c byte) error {
	t.b = append(t.b, c)
	return nil
}

// A source is what a value is decoded from, with the descriptors it may name, and its decoder.
type source struct {
	bytes.Reader
	decoder *msgpack.Decoder
	files   []*os.File
	taken   []bool
}

var (
	targets = sync.Pool{New: func() any { return &target{encoder: msgpack.NewEncoder(nil)} }}
	sources = sync.Pool{New: func() any { return &source{decoder: msgpack.NewDecoder(nil)} }}
)

// maxKept is how long a value may be, in bytes, for its decoder to be used again: it keeps a buffer of that size.
const maxKept = 4 << 10

// MarshalFiles is Marshal for a value that may have descriptors: fields of type *os.File, nil for none. It returns them in the order of their
// indices, and those that it has met also when it fails: with OverQuota for more than MaxFiles.
func MarshalFiles(v any) ([]byte, []*os.File, error) { return AppendFiles(make([]byte, 0, 64), v) }

// AppendFiles is MarshalFiles that appends to b. When it fails it returns no bytes.
func AppendFiles(b []byte, v any) ([]byte, []*os.File, error) {
	t := targets.Get().(*target)
	t.b = b
	e := t.encoder
	e.Reset(t)
	e.SetSortMapKeys(true)
	e.UseCompactInts(true)
	err := e.Encode(v)
	b, files := t.b, t.files
	if err == nil { // an encoder is not used again that failed, or whose value panicked
		t.b, t.files = nil, nil
		targets.Put(t)
		return b, files, nil
	}
	if coded, ok := errors.AsType[*Error](err); ok {
		return nil, files, coded
	}
	return nil, files, Errorf(Malformed, "encode %T: %v", v, err)
}

// UnmarshalFiles is Unmarshal for a value that came with descriptors. Those that v takes are v's from then on; the others are returned, and when it
// fails all are. It fails with Malformed also for a value that names a descriptor that did not come, or one twice.
func UnmarshalFiles(b []byte, files []*os.File, v any) (left []*os.File, err error) {
	most := len(b)
	if c, ok := v.(interface{ maxItems() int }); ok {
		most = c.maxItems()
	}
	if err := walk(b, uint64(most)); err != nil {
		return files, err
	}
	s := sources.Get().(*source)
	s.Reader.Reset(b)
	s.files = files
	if len(files) > 0 {
		s.taken = make([]bool, len(files))
	}
	s.decoder.Reset(s)
	if err := s.decoder.Decode(v); err != nil { // a decoder is not used again that failed: it may go on recording what it reads
		return files, Errorf(Malformed, "decode %T: %v", v, err)
	}
	if len(b) <= maxKept {
		s.Reader.Reset(nil)
		s.files, s.taken = nil, nil
		sources.Put(s)
	}
	if c, ok := v.(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			return files, err
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	held := map[*os.File]bool{}
	hold(reflect.ValueOf(v), held, MaxDepth+8)
	for _, f := range files {
		if !held[f] {
			left = append(left, f)
		}
	}
	return left, nil
}

// hold notes the descriptors that a decoded value has. Those that a key named which came again later it has not.
func hold(v reflect.Value, held map[*os.File]bool, depth int) {
	if depth == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.Type() == reflect.TypeFor[*os.File]() {
			held[(*os.File)(v.UnsafePointer())] = true
		} else if !v.IsNil() {
			hold(v.Elem(), held, depth-1)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			hold(field, held, depth-1)
		}
	case reflect.Slice, reflect.Array:
		if k := v.Type().Elem().Kind(); k > reflect.Complex128 && k != reflect.String { // those have none
			for i := range v.Len() {
				hold(v.Index(i), held, depth-1)
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			hold(it.Value(), held, depth-1)
		}
	}
}

func encodeFile(e *msgpack.Encoder, v reflect.Value) error {
	f := v.Interface().(*os.File)
	if f == nil {
		return e.EncodeNil()
	}
	t, ok := e.Writer().(*target)
	if !ok {
		return Errorf(Unsupported, "a descriptor outside of a message")
	}
	t.files = append(t.files, f)
	if len(t.files) > MaxFiles {
		return Errorf(OverQuota, "a message with more than %d descriptors", MaxFiles)
	}
	return e.EncodeInt(int64(len(t.files) - 1))
}

func decodeFile(d *msgpack.Decoder, v reflect.Value) error {
	i, err := d.DecodeInterface()
	if err != nil || i == nil {
		v.SetZero()
		return err
	}
	at := reflect.ValueOf(i)
	s, ok := d.Buffered().(*source)
	if !ok || !at.CanInt() && !at.CanUint() {
		return Errorf(Malformed, "a %T in place of a descriptor", i)
	}
	n := -1
	if at.CanInt() && at.Int() < MaxFiles {
		n = int(at.Int())
	} else if at.CanUint() && at.Uint() < MaxFiles {
		n = int(at.Uint())
	}
	switch {
	case n < 0 || n >= len(s.files):
		return Errorf(Malformed, "descriptor %v of %d", i, len(s.files))
	case s.taken[n]:
		return Errorf(Malformed, "descriptor %d is named twice", n)
	}
	s.taken[n] = true
	v.Set(reflect.ValueOf(s.files[n]))
	return nil
}
