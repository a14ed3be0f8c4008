package scraper

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTicksKeepTheirGrid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, slowly(1300*time.Microsecond))
		start := time.Now()
		b.run(t, 5*time.Second)
		if n := len(b.samples); n < 98 || n > 100 {
			t.Errorf("%d samples in 5 s, want one each 50 ms", n)
		}
		first := b.asked[0].Sub(start)
		if first >= 50*time.Millisecond {
			t.Errorf("first tick after %v, want an offset below the interval", first)
		}
		for i, at := range b.asked[2:] { // the first tick reads two pages
			if off := at.Sub(b.asked[0]) % (50 * time.Millisecond); off != 0 {
				t.Fatalf("tick %d is %v off the grid", i, off)
			}
		}
		if got := b.Interval(); got != 50*time.Millisecond {
			t.Errorf("interval %v, want 50ms", got)
		}
		if s := b.samples[1]; !s.Asked.Equal(b.asked[2]) || s.At.Sub(s.Asked) != 1300*time.Microsecond {
			t.Errorf("asked %v, read %v; want the time of the fetch, 1.3ms apart", s.Asked, s.At)
		}
	})
}

func TestSlowEngineIsAskedLess(t *testing.T) {
	for _, tc := range []struct {
		cost, interval time.Duration // the interval once settled
	}{
		{2 * time.Millisecond, 50 * time.Millisecond},
		{8 * time.Millisecond, 160 * time.Millisecond},
		{30 * time.Millisecond, 600 * time.Millisecond},
		{200 * time.Millisecond, MaxInterval},
		{time.Hour, MaxInterval}, // accepts and never answers
	} {
		t.Run(tc.cost.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inFlight := 0
				answer := slowly(tc.cost)
				b := newBench(t, func(ctx context.Context, n int, filtered bool) (page, error) {
					if inFlight++; inFlight > 1 {
						t.Error("two scrapes in flight")
					}
					defer func() { inFlight-- }()
					return answer(ctx, n, filtered)
				})
				b.run(t, 30*time.Second)
				if got := b.Interval(); got < tc.interval*9/10 || got > tc.interval*11/10 {
					t.Errorf("interval %v, want about %v", got, tc.interval)
				}
				lastTen := b.asked[len(b.asked)-10:]
				gap := lastTen[9].Sub(lastTen[0]) / 9
				if gap < tc.interval || gap > tc.interval+60*time.Millisecond {
					t.Errorf("mean gap %v, want %v rounded up to the grid", gap, tc.interval)
				}
				if tc.cost > time.Minute && (len(b.samples) > 0 || b.bad[0].Problem != Timeout) {
					t.Errorf("%d samples, first problem %v; want timeouts only", len(b.samples), b.bad[0])
				}
			})
		})
	}
}

func TestOneSlowScrapeIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(ctx context.Context, n int, f bool) (page, error) {
			if n == 50 {
				return slowly(time.Hour)(ctx, n, f)
			}
			return slowly(time.Millisecond)(ctx, n, f)
		})
		b.run(t, 10*time.Second)
		if len(b.bad) != 1 {
			t.Fatalf("%d bad, want the one timeout", len(b.bad))
		}
		back := b.asked[50]
		for i := 51; i < len(b.asked) && b.asked[i].Sub(b.asked[i-1]) > 50*time.Millisecond; i++ {
			back = b.asked[i]
		}
		if took := back.Sub(b.asked[50]); took > 4*time.Second {
			t.Errorf("back at 50 ms after %v, want within 4 s", took)
		}
		if got := b.Interval(); got != 50*time.Millisecond {
			t.Errorf("interval %v, want 50ms", got)
		}
	})
}

func TestStoppedProcessMakesNoBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(ctx context.Context, n int, f bool) (page, error) {
			if n == 20 {
				time.Sleep(30 * time.Second) // nothing of ours ran, timers included
			}
			return slowly(time.Millisecond)(ctx, n, f)
		})
		b.run(t, 40*time.Second)
		if n := strings.Count(b.logs.String(), "stood still"); n != 1 {
			t.Errorf("%d log lines about the pause, want 1:\n%s", n, b.logs.String())
		}
		for i := 21; i < len(b.asked); i++ {
			if gap := b.asked[i].Sub(b.asked[i-1]); gap < 50*time.Millisecond {
				t.Fatalf("fetch %d came %v after the one before", i, gap)
			}
		}
	})
}

func TestNextTick(t *testing.T) {
	start := time.Unix(1000, 0)
	const ms = time.Millisecond
	for _, tc := range []struct{ due, now, want time.Duration }{
		{50 * ms, 2 * ms, 50 * ms},
		{50 * ms, 50 * ms, 100 * ms}, // the tick itself has passed
		{50 * ms, 51 * ms, 100 * ms}, // late: skipped
		{60 * ms, 2 * ms, 100 * ms},  // a longer gap is rounded up
		{50 * ms, 30_010 * ms, 30_050 * ms},
		{0, -7 * ms, 0},
	} {
		if got := nextTick(start, start.Add(tc.due), start.Add(tc.now), 50*ms).Sub(start); got != tc.want {
			t.Errorf("due %v, now %v: next tick %v, want %v", tc.due, tc.now, got, tc.want)
		}
	}
}
