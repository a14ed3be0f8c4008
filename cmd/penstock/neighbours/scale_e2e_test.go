//go:build e2e

package neighbours

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"penstock/fleet"
	"penstock/reason"
)

// TestRealHundred: the neighbours of 100 engines in one process, as agents run them, by
// real sockets and with encryption: how old rows are, and what they cost.
func TestRealHundred(t *testing.T) {
	const size = 100
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	var (
		all  []*Neighbours
		seed string
		run  sync.WaitGroup
	)
	ctx, stop := context.WithCancel(t.Context())
	defer func() {
		stop()
		run.Wait()
		within(t, 10*time.Second, "memberlist's last probes are over", func() bool {
			all := make([]byte, 4<<20)
			return !bytes.Contains(all[:runtime.Stack(all, true)], []byte("memberlist."))
		})
	}()
	began := time.Now()
	for i := range size {
		n := scaled(t, fmt.Sprintf("node-%03d", i), keys, seed, prometheus.WrapRegistererWith(prometheus.Labels{"node": fmt.Sprint(i)}, reg))
		if i == 0 {
			seed = n.listen.Addr().String()
		}
		all = append(all, n)
		run.Go(func() {
			if err := n.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		// One after the other: a hundred that join at once are more than a core or two can
		// do in the second that a probe waits, and members that are missed make more work.
		within(t, 10*time.Second, n.opts.Gossip.Name+" is a member", func() bool { return len(all[0].gossip.Members()) == i+1 })
	}
	within(t, 60*time.Second, "every row at everybody", func() bool {
		return !slices.ContainsFunc(all, func(n *Neighbours) bool {
			engines, _, _ := fleet.Drain(n.Rows(), "m", time.Now())
			return engines < size
		})
	})
	joined := time.Since(began)
	time.Sleep(time.Until(began.Add(5 * time.Second))) // most of the first exchanges of state are over then
	var ages []time.Duration
	from, cpu, bytes := time.Now(), processorTime(t), sent(t, reg)
	for range 30 {
		time.Sleep(100 * time.Millisecond)
		for _, n := range all {
			rows, now := n.Rows(), time.Now()
			for i := range rows {
				ages = append(ages, now.Sub(rows[i].At))
			}
		}
	}
	took := time.Since(from)
	slices.Sort(ages)
	p99 := ages[len(ages)*99/100]
	t.Logf("%d engines, rows every 200 ms: all rows were everywhere %v after the first start; age of a row p50 %v, p99 %v, oldest of %d %v; each takes %.1f %% of a core and sends %.0f kB/s",
		size, joined.Round(10*time.Millisecond), ages[len(ages)/2].Round(time.Millisecond), p99.Round(time.Millisecond), len(ages), ages[len(ages)-1].Round(time.Millisecond),
		100*float64(processorTime(t)-cpu)/float64(took)/size, (sent(t, reg)-bytes)/1000/took.Seconds()/size)
	if p99 > fleet.StaleAfter {
		t.Errorf("p99 of the age of a row is %v; at most %v", p99, fleet.StaleAfter)
	}
}

// scaled is an agent's neighbours with the defaults of its flags.
func scaled(t *testing.T, name, keys, seed string, reg prometheus.Registerer) *Neighbours {
	t.Helper()
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	Flags(f, "127.0.0.1:0")
	args := []string{"--gossip-key-file", keys}
	if seed != "" {
		args = append(args, "--join", seed)
	}
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	opts, err := Read(f, name)
	if err != nil {
		t.Fatal(err)
	}
	own := func(now time.Time) fleet.Row {
		return fleet.Row{Node: name, Models: fleet.Models("m"), State: reason.OK, Freeness: 1000, At: now}
	}
	n, err := New(opts, own, func(string, string) {}, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sent is how many bytes all have sent.
func sent(t *testing.T, reg *prometheus.Registry) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "penstock_gossip_bytes_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "direction" && l.GetValue() == "out" {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
