package systemd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// inputs are made inside the bubble, so that waiting for them lets its time pass.
type inputs struct {
	hangup   chan os.Signal
	stopping chan struct{}
}

// heard runs a service in a bubble and returns what was told, by when.
func heard(t *testing.T, watchdog time.Duration, s *Service, script func(inputs)) (told []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s.Log = slog.New(slog.DiscardHandler)
		s.notify = func(lines string) {
			if strings.HasPrefix(lines, "RELOADING=1\nMONOTONIC_USEC=") {
				lines = "RELOADING=1"
			}
			told = append(told, time.Since(began).String()+" "+lines)
		}
		in := inputs{make(chan os.Signal), make(chan struct{})}
		s.Stopping = in.stopping
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.run(ctx, in.hangup, look, watchdog); close(done) }()
		script(in)
		stop()
		<-done
	})
	return told
}

func TestReady(t *testing.T) {
	var ok atomic.Bool
	s := &Service{Ready: func() (bool, string) { return ok.Load(), "no engine" }}
	got := heard(t, 0, s, func(inputs) {
		time.Sleep(900 * time.Millisecond)
		ok.Store(true)
		time.Sleep(10 * time.Second)
	})
	want := []string{"0s STATUS=not ready: no engine", "1s READY=1", "1s STATUS=ready"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestReadyWithoutAnEngine(t *testing.T) {
	s := &Service{Ready: func() (bool, string) { return false, "no engine" }}
	got := heard(t, 0, s, func(inputs) { time.Sleep(time.Minute) })
	want := []string{"0s STATUS=not ready: no engine", "5s READY=1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestWatchdogNeedsProgress(t *testing.T) {
	var stuck atomic.Bool
	last := time.Time{}
	s := &Service{Ready: func() (bool, string) { return true, "" }}
	s.Progress = func() time.Time {
		if !stuck.Load() {
			last = time.Now()
		}
		return last
	}
	got := heard(t, 3*time.Second, s, func(inputs) {
		time.Sleep(2500 * time.Millisecond)
		stuck.Store(true)
		time.Sleep(time.Minute)
	})
	want := []string{"0s READY=1", "0s STATUS=ready", "0s WATCHDOG=1", "1s WATCHDOG=1", "2s WATCHDOG=1", "3s WATCHDOG=1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestReloadAndStop(t *testing.T) {
	refuse := error(nil)
	s := &Service{Ready: func() (bool, string) { return true, "" }, Reload: func() error { return refuse }}
	got := heard(t, 3*time.Second, s, func(in inputs) {
		time.Sleep(100 * time.Millisecond)
		in.hangup <- syscall.SIGHUP
		synctest.Wait()
		refuse = errors.New("key file: line 2")
		in.hangup <- syscall.SIGHUP
		synctest.Wait()
		close(in.stopping)
		time.Sleep(1500 * time.Millisecond)
	})
	want := []string{
		"0s READY=1", "0s STATUS=ready", "0s WATCHDOG=1",
		"100ms RELOADING=1", "100ms READY=1", "100ms STATUS=ready",
		"100ms RELOADING=1", "100ms READY=1", "100ms STATUS=reload refused: key file: line 2", "100ms STATUS=ready",
		"100ms STOPPING=1", "100ms STATUS=draining",
		"1s WATCHDOG=1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// TestSocket: the lines reach a real notify socket.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "30000000")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	s := &Service{Ready: func() (bool, string) { return true, "" }, Log: slog.New(slog.DiscardHandler)}
	go func() { _ = s.Run(ctx); close(done) }()
	var got []string
	for range 3 {
		line := make([]byte, 100)
		_ = socket.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := socket.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(line[:n]))
	}
	stop()
	<-done
	if diff := cmp.Diff([]string{"READY=1", "STATUS=ready", "WATCHDOG=1"}, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
