//go:build e2e

package gossip

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// TestRealSoak: one agent and one gateway stay while others die, come back and drain.
// Their goroutines and their memory do not grow.
func TestRealSoak(t *testing.T) {
	f := the(t)
	stay := []*node{f.agents[0], f.gateways[0]}
	type size struct{ goroutines, rss float64 }
	read := func(n *node) size {
		count, err := n.metric("go_goroutines")
		if err != nil {
			t.Fatal(err)
		}
		_, rss, err := n.usage()
		if err != nil {
			t.Fatal(err)
		}
		return size{count, float64(rss)}
	}
	high := make([][2]size, len(stay)) // of the first and the last quarter
	began, turns := time.Now(), 0
	for ; time.Since(began) < *soak; turns++ {
		n := f.agents[1+turns%2]
		switch turns % 6 {
		case 0, 1:
			if err := n.end(syscall.SIGKILL, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if err := n.start(); err != nil {
				t.Fatal(err)
			}
		case 2, 3:
			f.change(t, n, true)
			f.change(t, n, false)
		default:
			for i := range 10 {
				if err := f.watch.abort(fmt.Sprintf("%d-%d", turns, i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.whole(t, 10*time.Second)
		for i, n := range stay {
			at := &high[i][0]
			switch part := float64(time.Since(began)) / float64(*soak); {
			case part > 0.75:
				at = &high[i][1]
			case part > 0.25:
				continue
			}
			now := read(n)
			at.goroutines, at.rss = max(at.goroutines, now.goroutines), max(at.rss, now.rss)
		}
	}
	eventually(t, 10*time.Second, func() string { // connections of this test's end
		for i, n := range stay {
			if now := read(n).goroutines; now > high[i][0].goroutines+5 {
				return fmt.Sprintf("%s has %v goroutines after %v of churn, at most %v in the first quarter", n.name, now, *soak, high[i][0].goroutines)
			}
		}
		return ""
	})
	for i, n := range stay {
		first, last := high[i][0], high[i][1]
		t.Logf("%s, alive for %v, %d kills, drains and bursts of aborts in %v: %v goroutines at most in the first quarter, %v in the last; %.0f and %.0f MiB",
			n.name, time.Since(n.began).Round(time.Second), turns, *soak, first.goroutines, last.goroutines, first.rss/(1<<20), last.rss/(1<<20))
		if last.goroutines > first.goroutines+5 || last.rss > first.rss*1.25+4<<20 {
			t.Errorf("%s grows: %+v, then %+v", n.name, first, last)
		}
	}
}
