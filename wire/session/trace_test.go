package session_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire/session"
)

// tracedVariable has the test's own program make some frames.
const tracedVariable = "SESSION_TEST_TRACED"

func TestATraceShowsEachFrameEscapedAndBounded(t *testing.T) {
	if os.Getenv(tracedVariable) != "" {
		makeFrames(t)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), tracedVariable+"=1", "FAIRLEAD_TRACE=1", noSleep)
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, trace.Bytes())
	}
	line := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{6} 00112233 ([<>]( stream \d+)? (request|reply|notice|end|stream|data|finish|large)( |$)|= com\.example\.test, (client|instance), the other side is process 0, messages on the (lane|stream)$)`)
	for text := range strings.Lines(trace.String()) {
		if text = strings.TrimSuffix(text, "\n"); !line.MatchString(text) || len(text) > 2000 || strings.ContainsAny(text, "\x1b\r\x00") {
			t.Errorf("%d bytes: %q", len(text), text)
		}
	}
	for _, want := range []string{
		`00112233 > request id 1 length \d+ \{"m":"echo" "w":\d+ "v":"hi\\x1b\[2J"\}`, `00112233 < request id 1 `, `00112233 > reply id 1 `,
		`00112233 > request id 2 length \d+ large \{`, `00112233 > stream \d+ large id 2 length 100005`,
		`00112233 > stream \d+ stream length \d+ \{"m":"echo"\}`, `00112233 > stream \d+ data length 3 "a\\x1bb"`, `00112233 < stream \d+ finish`,
		`00112233 < end length \d+ \{"c":"invalid"`,
	} {
		if !regexp.MustCompile(want).Match(trace.Bytes()) {
			t.Errorf("no line %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", trace.Bytes())
	}
}

// makeFrames makes a call, a large one and a raw stream.
func makeFrames(t *testing.T) {
	id := strings.Repeat("00112233", 4)
	c, _ := pair(t, session.Config{ID: id}, session.Config{ID: id, Handler: usual})
	ctx := within(t, 10*time.Second)
	for _, text := range []string{"hi\x1b[2J", strings.Repeat("x", 100_000)} {
		if err := c.Call(ctx, "echo", text, nil); err != nil {
			t.Fatal(err)
		}
	}
	st, err := c.OpenStream(ctx, "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	io.WriteString(st, "a\x1bb")
	st.CloseWrite()
	if _, err := io.ReadAll(st); err != nil {
		t.Fatal(err)
	}
	c.Close()
}
