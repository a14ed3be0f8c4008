package isolation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inMemory is a queue for each case, since all consumers of one have the same bound.
type inMemory struct {
	t     *testing.T
	queue atomic.Pointer[memory.Queue]
}

func (b *inMemory) open(threads int, _ []lane.Key) (Consumer, error) {
	cfg := memory.DefaultConfig()
	cfg.Concurrency = threads
	q, err := memory.New(cfg)
	if err != nil {
		return nil, err
	}
	b.check()
	b.queue.Store(q)
	return q.Consumer("n"), nil
}

func (b *inMemory) publish(ctx context.Context, m *queue.Message) error {
	return b.queue.Load().Publish(ctx, m)
}

// check holds that the last case left nothing.
func (b *inMemory) check() {
	b.t.Helper()
	if q := b.queue.Load(); q != nil {
		if _, n, _ := q.Len(); n > 0 {
			b.t.Errorf("a case left %d messages", n)
		}
	}
}

func small() Config {
	cfg := DefaultConfig()
	cfg.Lanes, cfg.Cases = 10, Plan(10, 10)
	return cfg
}

// TestMemory is the whole experiment on lanes in memory, whose deliveries take no
// time: what is slow comes from the threads alone.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := small()
		b := &inMemory{t: t}
		var order []string
		e, err := New(cfg, Broker{Publish: b.publish, Open: b.open}, func(round int, c Case, f Figures) {
			order = append(order, fmt.Sprint(round, " ", c))
		})
		if err != nil {
			t.Fatalf("New: %v", err)
		}
		rows, err := e.Run(t.Context())
		if err != nil {
			t.Fatalf("Run: %v", err)
		}
		b.check()
		for i, want := range []struct {
			Case
			slow bool
		}{
			{Case{0, None, 10}, false},
			{Case{1, Suspend, 10}, false},
			{Case{8, Suspend, 10}, false},
			{Case{8, Sleep, 10}, false}, // a thread for every lane
			{Case{8, Sleep, 6}, true},
			{Case{1, Sleep, 1}, true},
		} {
			r := rows[i]
			if r.Case != want.Case || len(r.Rounds) != cfg.Rounds {
				t.Errorf("row %d is %v with %d rounds, want %v with %d", i, r.Case, len(r.Rounds), want.Case, cfg.Rounds)
			}
			if _, holds := r.Target(cfg.Rate); !holds {
				t.Errorf("%v: %+v misses its target", r.Case, r.Figures)
			}
			if slow := r.P99 > 100*time.Millisecond; slow != want.slow {
				t.Errorf("%v: p99 is %v, slow is to be %v", r.Case, r.P99, want.slow)
			}
			if at := 1 / cfg.Limit.Seconds(); !want.slow && r.Limited > 0 && (r.LimitRate < 0.95*at || r.LimitRate > 1.01*at) {
				t.Errorf("%v: %.2f messages/s of a limited lane, want %.2f", r.Case, r.LimitRate, at)
			}
			if !want.slow && (r.FreeRate < 3.95 || r.FreeRate > 4.05) {
				t.Errorf("%v: %.2f messages/s of a free lane, want 4", r.Case, r.FreeRate)
			}
		}
		per := len(cfg.Cases)
		first, second := strings.Join(order[:per], "\n"), strings.Join(order[per:2*per], "\n")
		if first == strings.ReplaceAll(second, "2 ", "1 ") {
			t.Errorf("two rounds in the same order:\n%s", first)
		}
	})
}

// TestFailures holds that a case that fails still drains what it has published.
func TestFailures(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name    string
		publish func(n int) error // of message n
		open    error
		want    string
	}{
		{"open", nil, broken, "round 1, none 0, 10 threads: broken"},
		{"probe", func(int) error { return broken }, nil, "broken"},
		{"message", func(n int) error {
			if n > 100 {
				return broken
			}
			return nil
		}, nil, "broken"},
		{"slow", func(int) error {
			time.Sleep(time.Second)
			return nil
		}, nil, "the broker is too slow: publishing took more than 22s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := small()
				cfg.Cases = cfg.Cases[:1]
				b := &inMemory{t: t}
				var n atomic.Int32
				e, err := New(cfg, Broker{
					Publish: func(ctx context.Context, m *queue.Message) error {
						if err := tc.publish(int(n.Add(1))); err != nil {
							return err
						}
						return b.publish(ctx, m)
					},
					Open: func(threads int, lanes []lane.Key) (Consumer, error) {
						if tc.open != nil {
							return nil, tc.open
						}
						return b.open(threads, lanes)
					},
				}, func(int, Case, Figures) {})
				if err != nil {
					t.Fatalf("New: %v", err)
				}
				began := time.Now()
				if _, err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("Run = %v, want %q", err, tc.want)
				}
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("Run took %v", took)
				}
				b.check()
			})
		})
	}
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := small()
		b := &inMemory{t: t}
		e, err := New(cfg, Broker{Publish: b.publish, Open: b.open}, func(int, Case, Figures) {})
		if err != nil {
			t.Fatalf("New: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := e.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run = %v, want the end of its context", err)
		}
		if took := time.Since(began); took > 21*time.Second {
			t.Errorf("Run took %v", took)
		}
		b.check()
	})
}

func TestValidate(t *testing.T) {
	for field, change := range map[string]func(*Config){
		"Lanes":                   func(c *Config) { c.Lanes = 1 },
		"Cases":                   func(c *Config) { c.Cases = c.Cases[1:] },
		"leave a lane free":       func(c *Config) { c.Cases[1].Limited = 10 },
		"threads":                 func(c *Config) { c.Cases[1].Threads = 0 },
		"Limit":                   func(c *Config) { c.Limit = 10 * time.Millisecond },
		"more than the 3.33 that": func(c *Config) { c.Rate = 3 },
		"Warm":                    func(c *Config) { c.Warm = -1 },
		"Span":                    func(c *Config) { c.Span = 0 },
		"Rounds":                  func(c *Config) { c.Rounds = 0 },
	} {
		cfg := small()
		change(&cfg)
		if _, err := New(cfg, Broker{}, nil); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("New = %v, want an error that says %q", err, field)
		}
	}
}

func TestMedians(t *testing.T) {
	rounds := []Figures{{P99: 3, Slower: 1}, {P99: 1, Slower: 4}, {P99: 2, Slower: 2}}
	if diff := cmp.Diff(Figures{P99: 2, Slower: 2}, medians(rounds)); diff != "" {
		t.Errorf("of three (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Figures{P99: 2, Slower: 2.5}, medians(rounds[:2])); diff != "" {
		t.Errorf("of two (-want +got):\n%s", diff)
	}
}
