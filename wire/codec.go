package wire

import "github.com/vmihailenco/msgpack/v5"

// Marshal encodes v as one msgpack value, maps with sorted keys. It fails with Malformed for what msgpack cannot encode, and with Unsupported for
// descriptors.
func Marshal(v any) ([]byte, error) {
	b, files, err := MarshalFiles(v)
	if err == nil && len(files) > 0 {
		return nil, Errorf(Unsupported, "encode %T: descriptors cannot travel here", v)
	}
	return b, err
}

// Unmarshal walks b and then decodes it into v, which must point to a fresh value: what is absent from b is left as it is.
// Fields that v does not have are ignored. If v has a method Validate() error, it is called. It fails with Malformed.
func Unmarshal(b []byte, v any) error {
	_, err := UnmarshalFiles(b, nil, v)
	return err
}

// A Raw is one encoded value inside another.
type Raw = msgpack.RawMessage
