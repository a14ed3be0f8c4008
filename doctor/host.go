package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	// wantFiles is 10,000 open streams and their engine connections, thrice.
	wantFiles = 65_536
	// leastFiles is where a few hundred streams use all.
	leastFiles = 1024
	// drifting is far above what NTP slews in a moment: the clock was set.
	drifting = 50 * time.Millisecond
)

func checkHost(ctx context.Context, cfg Config, p Probes) []Check {
	files, err := p.OpenFiles()
	drift, _ := ask(ctx, func(ctx context.Context) (time.Duration, error) { return p.Drift(ctx), nil })
	checks := []Check{
		judgeFiles(files, err),
		judge("clock", drift.Abs() < drifting, Warn, fmt.Sprintf("wall clock and monotonic clock differ by %v over a moment", drift.Round(time.Microsecond)), "the clock is being set: run one NTP client that slews (chrony), and none beside it"),
	}
	for _, port := range cfg.Ports {
		found, err := ask(ctx, func(ctx context.Context) (Listener, error) { return p.Listen(ctx, port.Address) })
		checks = append(checks, judgePort(port, found, err))
	}
	return checks
}

func judgeFiles(limit uint64, err error) Check {
	const fix = "LimitNOFILE=65536 in the systemd unit, or ulimit -n 65536"
	switch {
	case err != nil:
		return Check{Name: "open files", Status: Warn, Evidence: err.Error(), Fix: fix}
	case limit < leastFiles:
		return Check{Name: "open files", Status: Fail, Evidence: fmt.Sprintf("limit %d", limit), Fix: fix}
	}
	return judge("open files", limit >= wantFiles, Warn, fmt.Sprintf("limit %d; a stream takes one, and one more at its engine", limit), fix)
}

func judgePort(port Port, found Listener, err error) Check {
	name := "port " + port.Flag
	switch {
	case err != nil:
		return Check{Name: name, Status: Fail, Evidence: fmt.Sprintf("%s: %s", port.Address, oneLine(err.Error())), Fix: "choose an address of this host with " + port.Flag}
	case found == Stranger:
		return Check{Name: name, Status: Fail, Evidence: port.Address + " is in use by another program", Fix: "choose another address with " + port.Flag}
	case found == Ours:
		return ok(name, "%s: penstock serves there", port.Address)
	}
	return ok(name, "%s is free", port.Address)
}
