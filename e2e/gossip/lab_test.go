//go:build e2e

// Package gossip runs agents and gateways as real processes, each on a host of its own:
// a network namespace with the default ports, of scripts/netlab. Broker and Redis are
// away, but for TestRealLoad: rows and aborts by gossip do not ask for them. scripts/e2e
// runs the short form, scripts/chaos the full one (-full); both set E2E_BINARY and
// E2E_CACHE. Needs root. What is missing is a failure, not a skip.
package gossip

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	penstock string
	home     string // logs and keys of these tests
	full     = flag.Bool("full", false, "the full form: longer faults, more samples, 100 hosts, load")
	soak     = flag.Duration("soak", 6*time.Second, "how long nodes die and come back around two that stay")
	lab      = "pl" // prefix of the namespaces
)

// Hosts of the lab. This process is 10.88.0.254.
const (
	backends = 6  // broker and Redis
	spare    = 7  // where a replaced node goes
	more     = 11 // the first of those that join for one test
)

func address(host int) string { return fmt.Sprintf("10.88.0.%d", host) }

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	penstock = os.Getenv("E2E_BINARY")
	cache := os.Getenv("E2E_CACHE")
	if penstock == "" || cache == "" {
		fmt.Fprintln(os.Stderr, "e2e: E2E_BINARY or E2E_CACHE is not set; run scripts/e2e")
		return 1
	}
	home = filepath.Join(cache, "gossip")
	if prefix := os.Getenv("NETLAB"); prefix != "" {
		lab = prefix
	}
	begin := func() error {
		if err := os.MkdirAll(home, 0o755); err != nil {
			return err
		}
		sweep()
		_, err := netlab("up", strconv.Itoa(more+long(15, 97)))
		return err
	}
	if err := begin(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	for _, p := range started {
		if err := p.end(syscall.SIGKILL, 10*time.Second); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}
	if _, err := netlab("down"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	return code
}

// netlab runs scripts/netlab.
func netlab(args ...string) (string, error) { return script("../../scripts/netlab", args...) }

func script(path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "NETLAB="+lab)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", path, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// fault does to the lab what a test needs, or ends the test.
func fault(t *testing.T, args ...any) {
	t.Helper()
	text := make([]string, len(args))
	for i := range args {
		text[i] = fmt.Sprint(args[i])
	}
	if _, err := netlab(text...); err != nil {
		t.Fatal(err)
	}
}

// inside runs f on a thread that is in a host's network: sockets that f opens and
// processes that it starts are of that host.
func inside(host int, f func() error) error {
	runtime.LockOSThread() // for good where the way back fails: the thread ends with this goroutine
	outside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = outside.Close() }()
	there, err := os.Open(fmt.Sprintf("/run/netns/%s%d", lab, host))
	if err != nil {
		return err
	}
	defer func() { _ = there.Close() }()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("host %d: %w", host, err)
	}
	err = f()
	if back := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}

// dial connects to an address as a host sees it.
func dial(ctx context.Context, host int, to string) (c net.Conn, err error) {
	err = inside(host, func() (err error) {
		c, err = (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", to)
		return err
	})
	return c, err
}

var (
	pids    sync.Mutex // guards started and the file of pids
	started []*process
)

// note remembers a process for the end, and for the sweep of the next run.
func note(p *process, pid int) error {
	pids.Lock()
	defer pids.Unlock()
	started = append(started, p)
	f, err := os.OpenFile(filepath.Join(home, "pids"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, pid)
	return errors.Join(err, f.Close())
}

// sweep ends what an earlier run that was cut short has left.
func sweep() {
	old, _ := os.ReadFile(filepath.Join(home, "pids"))
	for line := range strings.Lines(string(old)) {
		pid := strings.TrimSpace(line)
		command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if n, err := strconv.Atoi(pid); err == nil && strings.HasPrefix(string(command), penstock+"\x00") {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	_ = os.Remove(filepath.Join(home, "pids"))
}

// eventually polls until holds says "" or the time is over. What takes more than a
// second is logged.
func eventually(t *testing.T, within time.Duration, holds func() string) time.Duration {
	t.Helper()
	last := ""
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		missing := holds()
		took := time.Since(began)
		switch {
		case missing == "" && took > time.Second:
			t.Logf("%v until not: %s", took.Round(time.Millisecond), last)
			return took
		case missing == "":
			return took
		case took > within:
			t.Fatalf("not within %v: %s", within, missing)
		}
		last = missing
	}
}

// long is the first in the short form, the second in the full one.
func long[T any](short, whole T) T {
	if *full {
		return whole
	}
	return short
}
