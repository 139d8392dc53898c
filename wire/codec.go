package wire

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
)

// Marshal encodes v as one msgpack value, maps with sorted keys. It fails with Malformed for what msgpack cannot encode.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(&buf)
	e.SetSortMapKeys(true)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		return nil, Errorf(Malformed, "encode %T: %v", v, err)
	}
	return buf.Bytes(), nil
}

// Unmarshal walks b and then decodes it into v, which must point to a fresh value: what is absent from b is left as it is.
// Fields that v does not have are ignored. If v has a method Validate() error, it is called. It fails with Malformed.
func Unmarshal(b []byte, v any) error {
	most := len(b)
	if c, ok := v.(interface{ maxItems() int }); ok {
		most = c.maxItems()
	}
	if err := walk(b, uint64(most)); err != nil {
		return err
	}
	// A decoder is not used again: one that failed may go on recording what it reads.
	if err := msgpack.NewDecoder(bytes.NewReader(b)).Decode(v); err != nil {
		return Errorf(Malformed, "decode %T: %v", v, err)
	}
	if c, ok := v.(interface{ Validate() error }); ok {
		return c.Validate()
	}
	return nil
}

// A Raw is one encoded value inside another.
type Raw = msgpack.RawMessage
