package wire

import (
	"bytes"
	"math"
	"reflect"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// A Map is a map as it is encoded: its pairs in their order, with keys of any kind.
type Map []Pair

// A Pair is a key of a Map and its value, both as Tree returns them.
type Pair struct{ Key, Value any }

// An Ext is a value of an ext type that is not msgpack's timestamp.
type Ext struct {
	Type int8
	Data []byte
}

func init() { msgpack.Register(Map(nil), encodeMap, nil) }

func encodeMap(e *msgpack.Encoder, v reflect.Value) error {
	m := v.Interface().(Map)
	if err := e.EncodeMapLen(len(m)); err != nil {
		return err
	}
	for _, p := range m {
		if err := e.Encode(p.Key); err != nil {
			return err
		}
		if err := e.Encode(p.Value); err != nil {
			return err
		}
	}
	return nil
}

// Tree decodes a value of which nothing is known: it walks b and returns nil, a bool, an int64, a uint64 that is more than any int64, a float32, a float64, a
// string, a []byte, a time.Time, a []any, a Map or an Ext. No bytes are nil. Marshal takes all but an Ext back. It fails with Malformed.
func Tree(b []byte) (any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if err := Walk(b); err != nil {
		return nil, err
	}
	v, err := tree(msgpack.NewDecoder(bytes.NewReader(b)))
	if err != nil {
		return nil, Errorf(Malformed, "decode: %v", err)
	}
	return v, nil
}

// tree decodes the next value, which has been walked.
func tree(d *msgpack.Decoder) (any, error) {
	c, err := d.PeekCode()
	switch {
	case err != nil:
		return nil, err
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		return treeMap(d)
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		return treeList(d)
	case msgpcode.IsExt(c):
		return treeExt(d)
	}
	v, err := d.DecodeInterface()
	switch n := reflect.ValueOf(v); {
	case err != nil:
		return nil, err
	case n.CanInt():
		return n.Int(), nil
	case n.CanUint() && n.Uint() <= math.MaxInt64:
		return int64(n.Uint()), nil
	}
	return v, nil
}

func treeMap(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeMapLen()
	if err != nil {
		return nil, err
	}
	m := make(Map, n)
	for i := range m {
		if m[i].Key, err = tree(d); err != nil {
			return nil, err
		}
		if m[i].Value, err = tree(d); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func treeList(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeArrayLen()
	if err != nil {
		return nil, err
	}
	list := make([]any, n)
	for i := range list {
		if list[i], err = tree(d); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// treeExt decodes a timestamp, or returns another ext as it is; also one of the timestamp's type that is none.
func treeExt(d *msgpack.Decoder) (any, error) {
	raw, err := d.DecodeRaw()
	if err != nil {
		return nil, err
	}
	kind, size, err := msgpack.NewDecoder(bytes.NewReader(raw)).DecodeExtHeader()
	if err != nil {
		return nil, err
	}
	var at time.Time
	if kind == -1 && msgpack.Unmarshal(raw, &at) == nil {
		return at, nil
	}
	return Ext{kind, raw[len(raw)-size:]}, nil
}
