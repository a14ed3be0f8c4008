package sim

import (
	"testing"
	"time"

	"penstock/sim/traces"
)

func TestParseBurst(t *testing.T) {
	for in, want := range map[string]Burst{"": {}, "3x60s": {3, time.Minute}, "1.5x500ms": {1.5, 500 * time.Millisecond}} {
		got, err := ParseBurst(in)
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
		if again, err := ParseBurst(got.String()); err != nil || again != got {
			t.Errorf("%v printed and read is %v, %v", got, again, err)
		}
	}
	for _, in := range []string{"3", "x60s", "3x", "3x60", "threex1s"} {
		if b, err := ParseBurst(in); err == nil || b != (Burst{}) {
			t.Errorf("%q: got %v, %v, want an error", in, b, err)
		}
	}
}

// A burst adds its requests where it is, and leaves the usual ones as they were.
func TestBurstArrivals(t *testing.T) {
	cfg := short(t, "conv", "kv-bound", "none")
	cfg.Burst = Burst{Times: 3, For: 5 * time.Second} // from 15 s to 20 s
	usual := cfg.arrivals(10, 0)
	var rest []traces.Arrival
	extra := 0
	for i, a := range cfg.burst(usual, 10, 0) {
		if !a.Extra {
			rest = append(rest, a)
			continue
		}
		extra++
		if a.At < 15*time.Second || a.At > 20*time.Second {
			t.Fatalf("request %d of the burst comes at %v", i, a.At)
		}
	}
	if extra != 100 || len(rest) != len(usual) {
		t.Fatalf("%d more and %d usual ones, want 100 and %d", extra, len(rest), len(usual))
	}
	for i := range rest {
		if rest[i].At != usual[i].At || rest[i].Prompt != usual[i].Prompt {
			t.Fatalf("usual request %d is %+v, want %+v", i, rest[i], usual[i])
		}
	}
}

func TestRecovery(t *testing.T) {
	// One request every 100 ms for 60 s; from 20 s on those of the burst's time and
	// some seconds more are bad.
	world := func(bad func(at time.Duration) bool) (all []outcome) {
		for at := time.Duration(0); at < time.Minute; at += 100 * time.Millisecond {
			all = append(all, outcome{Arrival: traces.Arrival{Request: traces.Request{At: at}}, good: !bad(at)})
		}
		return all
	}
	never := func(time.Duration) bool { return false }
	for _, c := range []struct {
		name  string
		calm  func(time.Duration) bool
		storm func(time.Duration) bool
		want  time.Duration
	}{
		{"nothing lost", never, never, 0},
		{"three seconds lost", never, func(at time.Duration) bool { return at >= 20*time.Second && at < 33*time.Second }, 3 * time.Second},
		{"as bad as without", func(at time.Duration) bool { return at >= 30*time.Second && at < 35*time.Second }, func(at time.Duration) bool { return at < 35*time.Second }, 0},
		{
			"a good moment, then bad again", never,
			func(at time.Duration) bool { return at < 32*time.Second || at > 35*time.Second && at < 45*time.Second },
			15 * time.Second,
		},
		{"for good", never, func(at time.Duration) bool { return at >= 20*time.Second }, 30 * time.Second},
		{"nothing to go back to", func(time.Duration) bool { return true }, never, 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			stormy := append(world(c.storm), outcome{Arrival: traces.Arrival{Request: traces.Request{At: 25 * time.Second}, Extra: true}, good: true})
			if got := recovery(world(c.calm), stormy, 30*time.Second, time.Minute); got != c.want {
				t.Errorf("recovered after %v, want %v", got, c.want)
			}
		})
	}
}
