//go:build e2e

package gossip

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// throttle leaves a process quota of CPU time in 100 ms, until end is called.
func throttle(t *testing.T, pid int, quota time.Duration) (end func()) {
	t.Helper()
	type setting struct{ file, value string }
	root, limit := "/sys/fs/cgroup/cpu", setting{"cpu.cfs_quota_us", fmt.Sprint(quota.Microseconds())} // version 1, its period is 100 ms
	if _, err := os.Stat(root); err != nil {
		root, limit = "/sys/fs/cgroup", setting{"cpu.max", fmt.Sprintf("%d 100000", quota.Microseconds())}
	}
	group := filepath.Join(root, "penstock-"+lab)
	write := func(dir string, s setting) {
		if err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	write(group, limit)
	write(group, setting{"cgroup.procs", fmt.Sprint(pid)})
	return func() {
		write(root, setting{"cgroup.procs", fmt.Sprint(pid)})
		_ = os.Remove(group)
	}
}

// TestRealStarved: one agent has 5 % of a core while its metrics are asked for without
// pause. The others go on: no row of theirs is missing anywhere, none of them is said
// to be gone, and of the starved one they count on nothing old.
func TestRealStarved(t *testing.T) {
	f := the(t)
	starved := f.agents[2]
	healthy := []*node{f.agents[0], f.agents[1], f.gateways[0], f.gateways[1]}
	logs := func(n *node) int64 {
		info, err := os.Stat(n.log)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	var from []int64
	for _, n := range healthy {
		from = append(from, logs(n))
	}
	end := throttle(t, starved.pid(), 5*time.Millisecond)
	over := make(chan struct{})
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if body, err := starved.get(starved.admin + "/metrics"); err == nil {
					_, _ = io.Copy(io.Discard, body)
					_ = body.Close()
				}
			}
		})
	}
	looks, counted, states := 0, 0, map[string]int{}
	lasts := long(8*time.Second, 30*time.Second)
	for began := time.Now(); time.Since(began) < lasts; time.Sleep(100 * time.Millisecond) {
		if missing := f.missing(healthy, agents(healthy)); missing != "" {
			t.Errorf("while %s starves: %s", starved.name, missing)
			break
		}
		for _, n := range healthy {
			all, err := n.views()
			if err != nil {
				t.Fatal(err)
			}
			v := all[starved.name]
			looks++
			if v.counts() {
				counted++
				states[v.state]++
			}
		}
	}
	close(over)
	end()
	asking.Wait()
	back := f.whole(t, 5*time.Second)
	for i, n := range healthy {
		log, err := os.Open(n.log)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(io.NewSectionReader(log, from[i], logs(n)-from[i]))
		_ = log.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "member gone") && !strings.Contains(line, "member="+starved.name) {
				t.Errorf("%s: %s", n.name, line)
			}
		}
	}
	t.Logf("%s with 5 %% of a core for %v: %.0f %% of the looks of others found a row of it that counts, in states %v; nobody else was missed; whole %v after the end",
		starved.name, lasts, 100*float64(counted)/float64(looks), states, back.Round(time.Millisecond))
}
