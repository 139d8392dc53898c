package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/fairlead-dev/fairlead/services"
	"github.com/fairlead-dev/fairlead/wire"
)

// roleVariable has the test's own program play a process that a test needs.
const roleVariable = "BROKER_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "second" {
		err := services.Server{Endpoints: map[string]*services.Mux{echoEndpoint: echoMux()}, Service: "com.example.second"}.Serve(context.Background())
		json.NewEncoder(os.Stdout).Encode(wire.AsError(err))
		return
	}
	os.Exit(m.Run())
}

// second runs a process that tries to serve an endpoint, and returns why it could not.
func second(t *testing.T, at string) wire.Error {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=second", "FAIRLEAD_SOCKET="+at)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	e := wire.Error{}
	if err == nil {
		err = json.Unmarshal(out, &e)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("second server: %w: %s", err, out))
	}
	return e
}
