package rocketmq

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs parallel tests wider than there are cores (they wait for the client
// library's fixed pauses), and holds that nothing is left behind: no goroutine, and
// no file of the library's logger.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	home, err := os.MkdirTemp("", "home")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	if os.Getenv("PENSTOCK_CACHE") == "" { // of scripts/rocketmq, which the fault tests call
		_ = os.Setenv("PENSTOCK_CACHE", filepath.Join(os.Getenv("HOME"), ".cache", "penstock"))
	}
	_ = os.Setenv("HOME", home)
	code := m.Run()
	if code == 0 {
		code = leftBehind(home)
	}
	os.Exit(code)
}

func leftBehind(home string) (code int) {
	_ = filepath.WalkDir(home, func(path string, _ os.DirEntry, _ error) error {
		if path != home {
			fmt.Fprintf(os.Stderr, "the client library wrote %s\n", path)
			code = 1
		}
		return nil
	})
	if err := goleak.Find(
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		// The library sleeps once before each of its tickers, the longest 60 s, and
		// looks for its end only then.
		goleak.IgnoreTopFunction("time.Sleep"),
	); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}
