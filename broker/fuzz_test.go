package broker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead-dev/fairlead/broker"
)

// FuzzRecord reads the record of a service from any bytes. What is taken for a record can be written, and reads as the same.
func FuzzRecord(f *testing.F) {
	for _, text := range []string{
		`{"version":1,"number":3,"health":{}}`,
		`{"version":1,"number":9223372036854775807,"served":true,"health":{"deaths":4},"last":{"instance":3,"status":"exit status 1"}}`,
		`{"version":1,"number":1,"keeper":{"keeper":{"pid":-1,"start":18446744073709551615,"boot":"x"},"program":{"pid":1}},"health":{}}`,
		`{"version":2}`, `{"version":1,"number":-1}`, `{"version":1,"number":1e3}`, `[]`, `null`, ``, `{`, "\x00", `{"version":1,"started_by":{"program":["x"],"limits":{"nofile":{}}}}`,
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "record.d", "x.json")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		number, useless, err := broker.RewriteRecord(path)
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if useless != nil {
			return
		}
		again, useless, err := broker.RewriteRecord(path)
		if again != number || number < 0 || useless != nil || err != nil {
			t.Errorf("%q: number %d, and what was written of it reads as %d, %v, %v", b, number, again, useless, err)
		}
	})
}
