package main

import (
	"flag"
	"net"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// tests wraps the tests in a leak check: testscript's Main and goleak's both want
// to be last.
type tests struct{ *testing.M }

func (m tests) Run() int {
	// The parallel tests mostly wait: for an engine to count as gone, for a drain.
	parallel := "16"
	if raced {
		parallel = "6"
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	code := m.M.Run()
	if code == 0 {
		if err := goleak.Find(
			// The RocketMQ client library starts it when it is linked, and never stops it.
			goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start")); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"penstock": main})
}

// TestScript runs the command lines in testdata/script.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Setup: func(env *testscript.Env) error {
		env.Setenv("HOME", env.WorkDir)
		env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
		for _, name := range []string{"LISTEN", "GRPC", "ADMIN"} { // addresses that are free
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer l.Close()
			env.Setenv(name, l.Addr().String())
		}
		return nil
	}})
}
