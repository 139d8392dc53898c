package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Text returns an encoded value for people, in some limit bytes and without anything a terminal would act on. What is no value comes as hexadecimal digits.
func Text(b []byte, limit int) string {
	t := text{d: msgpack.NewDecoder(bytes.NewReader(b)), limit: limit}
	if Walk(b) != nil || t.value() != nil {
		t.b = hex.AppendEncode(nil, b[:min(len(b), limit)])
	}
	return Printable(string(t.b), limit)
}

// A text is a value that is being written for people. It has been walked.
type text struct {
	d     *msgpack.Decoder
	b     []byte
	limit int
}

func (t *text) value() error {
	c, err := t.d.PeekCode()
	switch {
	case err != nil:
		return err
	case len(t.b) > t.limit: // what follows is cut off
		return nil
	case msgpcode.IsFixedMap(c), c == msgpcode.Map16, c == msgpcode.Map32:
		n, err := t.d.DecodeMapLen()
		return t.list('{', '}', 2*n, err)
	case msgpcode.IsFixedArray(c), c == msgpcode.Array16, c == msgpcode.Array32:
		n, err := t.d.DecodeArrayLen()
		return t.list('[', ']', n, err)
	}
	v, err := t.d.DecodeInterface()
	switch v := v.(type) {
	case string:
		t.b = strconv.AppendQuoteToASCII(t.b, v[:min(len(v), t.limit)])
	case []byte:
		t.b = hex.AppendEncode(append(t.b, "0x"...), v[:min(len(v), t.limit)])
	case nil:
		t.b = append(t.b, "nil"...)
	default:
		t.b = fmt.Append(t.b, v)
	}
	return err
}

// list writes n values between open and close; in a map every second one is a key.
func (t *text) list(open, close byte, n int, err error) error {
	if err != nil {
		return err
	}
	t.b = append(t.b, open)
	for i := range n {
		if len(t.b) > t.limit {
			return nil
		}
		if open == '{' && i%2 == 1 {
			t.b = append(t.b, ':')
		} else if i > 0 {
			t.b = append(t.b, ' ')
		}
		if err := t.value(); err != nil {
			return err
		}
	}
	t.b = append(t.b, close)
	return nil
}
