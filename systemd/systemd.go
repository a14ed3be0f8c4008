// Package systemd tells the service manager how the process is: READY, a line of
// status, the watchdog and reloads. The units lie beside it. Outside systemd only
// SIGHUP is heard.
package systemd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

const (
	// look is how often readiness is asked for; what changed is told then.
	look    = 200 * time.Millisecond
	unheard = time.Hour // where no service manager listens a look would only wake the process
	// degradedAfter is when a process that waits for its engine, broker or store is
	// declared started: its status says what is missing, and units that come after it
	// are not held up by a model that loads for minutes.
	degradedAfter = 5 * time.Second
)

// Service is a process as the service manager sees it.
type Service struct {
	// Ready says whether the process can do its work, or in a few words why not.
	Ready func() (ok bool, why string)
	// Progress is when the slowest control loop last came round. The watchdog is fed
	// only when it has moved: a loop that hangs ends the process. nil feeds it while
	// this package's own loop runs.
	Progress func() time.Time
	// Reload takes changed files over, at SIGHUP; an error leaves all as it was.
	Reload func() error
	// Stopping closes when the process begins to drain.
	Stopping <-chan struct{}
	Log      *slog.Logger

	notify func(lines string) // tests; nil is $NOTIFY_SOCKET
}

// Run tells the service manager until ctx ends, and returns nil. It belongs to what
// ends last: a drain is watched too.
func (s *Service) Run(ctx context.Context) error {
	if s.notify == nil {
		s.notify = func(lines string) {
			if _, err := daemon.SdNotify(false, lines); err != nil {
				s.Log.Debug("service manager not told", "err", err)
			}
		}
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.Log.Warn("watchdog of the service manager is not fed", "err", err)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	every := look
	if os.Getenv("NOTIFY_SOCKET") == "" {
		every = unheard
	}
	s.run(ctx, hangup, every, watchdog)
	return nil
}

// run is Run with its inputs. watchdog 0 is none.
func (s *Service) run(ctx context.Context, hangup <-chan os.Signal, every, watchdog time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	var fed, seen time.Time // when the watchdog was fed last, and the progress then
	ready, status, stopping := false, "", s.Stopping
	say := func(now string) {
		if now != status {
			status = now
			s.notify("STATUS=" + now)
		}
	}
	for {
		now := time.Now()
		ok, why := s.Ready()
		if !ready && (ok || now.Sub(began) >= degradedAfter) {
			ready = true
			s.notify("READY=1")
		}
		switch {
		case stopping == nil && s.Stopping != nil: // "draining" stays
		case ok:
			say("ready")
		default:
			say("not ready: " + why)
		}
		progress := now
		if s.Progress != nil {
			progress = s.Progress()
		}
		if watchdog > 0 && now.Sub(fed) >= watchdog/3 && progress.After(seen) {
			fed, seen = now, progress
			s.notify("WATCHDOG=1")
		}
		select {
		case <-tick.C:
		case <-hangup:
			s.reload()
			status = "" // say it again, whatever reload said
		case <-stopping:
			stopping = nil
			s.notify("STOPPING=1")
			say("draining")
		case <-ctx.Done():
			return
		}
	}
}

func (s *Service) reload() {
	var clock unix.Timespec // Type=notify-reload wants the time of the reload in the kernel's clock
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &clock)
	s.notify(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", clock.Nano()/1000))
	err := s.Reload()
	s.notify("READY=1")
	if err != nil {
		s.Log.Error("reload refused, that part stays as it was", "err", err)
		s.notify("STATUS=reload refused: " + err.Error())
		return
	}
	s.Log.Info("reloaded")
}
