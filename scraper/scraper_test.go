package scraper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"penstock/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a Scraper with a scripted engine instead of a network, on fake time.
type bench struct {
	*Scraper
	logs    bytes.Buffer
	reg     *prometheus.Registry
	samples []scheduler.Sample
	bad     []*Error
	asked   []time.Time // start of each fetch
	kinds   []string    // "full" or "names"
}

// answer serves fetch number n (from 0).
func newBench(t *testing.T, answer func(ctx context.Context, n int, filtered bool) (page, error)) *bench {
	t.Helper()
	b := &bench{reg: prometheus.NewRegistry()}
	cfg := DefaultConfig()
	cfg.URL = "http://engine:8000"
	var err error
	b.Scraper, err = New(cfg, b.reg, slog.New(slog.NewTextHandler(&b.logs, nil)),
		func(s scheduler.Sample) { b.samples = append(b.samples, s) },
		func(_ time.Time, err error) { b.bad = append(b.bad, asError(err)) })
	if err != nil {
		t.Fatal(err)
	}
	b.fetch = func(ctx context.Context, filtered bool) (page, error) {
		n := len(b.asked)
		b.asked = append(b.asked, time.Now())
		b.kinds = append(b.kinds, map[bool]string{false: "full", true: "names"}[filtered])
		return answer(ctx, n, filtered)
	}
	return b
}

// run polls for d of fake time.
func (b *bench) run(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := b.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func (b *bench) count(name, label string) float64 {
	families, _ := b.reg.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

// slowly is a good page after d, or the end of ctx.
func slowly(d time.Duration) func(context.Context, int, bool) (page, error) {
	return func(ctx context.Context, _ int, _ bool) (page, error) {
		select {
		case <-time.After(d):
			return page{body: []byte(goodPage)}, nil
		case <-ctx.Done():
			return page{}, transportError(ctx.Err())
		}
	}
}

// fullAnd serves a page with other lines, and names on the filtered path.
func fullAnd(names func() (page, error)) func(context.Context, int, bool) (page, error) {
	full := goodPage + strings.Repeat("other_total 1\n", 100)
	return func(_ context.Context, _ int, filtered bool) (page, error) {
		if filtered {
			return names()
		}
		return page{body: []byte(full)}, nil
	}
}

func TestPageSelection(t *testing.T) {
	body := func(s string) func() (page, error) {
		return func() (page, error) { return page{body: []byte(s)}, nil }
	}
	for _, tc := range []struct {
		name   string
		answer func() (page, error)
		want   string // the kinds of the first four fetches
	}{
		{"honoured", body(goodPage), "full names names names"},
		{"ignored", body(goodPage + strings.Repeat("other_total 1\n", 100)), "full names full full"},
		{"no bytes", body(""), "full names full full"},
		{"a required name missing", body(goodPage[:strings.Index(goodPage, "vllm:num_requests_waiting")]), "full names full full"},
		{"another name set", body(goodPage + "vllm:prompt_tokens_total 1\n"), "full names full full"},
		{"redirect", func() (page, error) { return page{}, &Error{Problem: Status} }, "full names full full"},
		{"timeout", func() (page, error) { return page{}, &Error{Problem: Timeout} }, "full names full full"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, fullAnd(tc.answer))
				b.run(t, 300*time.Millisecond)
				if got := strings.Join(b.kinds[:4], " "); got != tc.want {
					t.Errorf("fetched %s, want %s", got, tc.want)
				}
				if len(b.bad) > 0 {
					t.Errorf("bad %v: the probe costs no sample", b.bad)
				}
			})
		})
	}
}

func TestChecksReadAFullPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timeouts := 1
		b := newBench(t, fullAnd(func() (page, error) {
			if timeouts--; timeouts >= 0 {
				return page{}, &Error{Problem: Timeout}
			}
			return page{body: []byte(goodPage)}, nil
		}))
		b.run(t, 30*time.Second)
		kinds := strings.Join(b.kinds, " ")
		// A probe that timed out is repeated with the next check, then one full page each 10 s.
		head := "full names" + strings.Repeat(" full", 200) + " names names"
		if !strings.HasPrefix(kinds, head) {
			t.Errorf("fetched %.1500s\nwant %s …", kinds, head)
		}
		if n := strings.Count(strings.TrimPrefix(kinds, head), "full"); n != 1 {
			t.Errorf("%d full pages in the last 20 s, want 1", n)
		}
		if n := strings.Count(b.logs.String(), "metrics page understood"); n != 2 {
			t.Errorf("%d lines about the contract, want one as found and one when the filter answered", n)
		}
		if n := b.count("penstock_engine_scrape_errors_total", "disagrees"); n != 0 {
			t.Errorf("%v disagreements, want 0", n)
		}
	})
}

func TestCheckThatTimesOutBlindsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := fullAnd(func() (page, error) { return page{body: []byte(goodPage)}, nil })
		b := newBench(t, func(ctx context.Context, n int, filtered bool) (page, error) {
			if n > 0 && !filtered {
				return slowly(time.Hour)(ctx, n, filtered)
			}
			return full(ctx, n, filtered)
		})
		b.run(t, 35*time.Second)
		if len(b.bad) != 3 {
			t.Errorf("%d bad, want one per check: 3", len(b.bad))
		}
		for i := 1; i < len(b.samples); i++ {
			if gap := b.samples[i].At.Sub(b.samples[i-1].At); gap >= time.Second {
				t.Fatalf("no sample for %v", gap)
			}
		}
	})
}

func TestRestartAsksAgain(t *testing.T) {
	const counters = "vllm:generation_tokens_total %d\nvllm:inter_token_latency_seconds_sum %d\nvllm:inter_token_latency_seconds_count %d\n"
	synctest.Test(t, func(t *testing.T) {
		var filters bool
		b := newBench(t, func(_ context.Context, n int, filtered bool) (page, error) {
			tokens := 1000 + n
			if n >= 6 { // a new process
				tokens = n
			}
			body := goodPage + fmt.Sprintf(counters, tokens, tokens, 10*tokens)
			if !filtered || !filters {
				body += strings.Repeat("other_total 1\n", 100)
			}
			filters = n >= 6
			return page{body: []byte(body)}, nil
		})
		b.run(t, 600*time.Millisecond)
		want := "full names full full full full full full names names"
		if got := strings.Join(b.kinds[:10], " "); got != want {
			t.Errorf("fetched %s, want %s", got, want)
		}
		for i, s := range b.samples[:8] { // the second fetch was a probe
			if s.Restarted != (i == 5) {
				t.Errorf("sample %d: restarted %v", i, s.Restarted)
			}
			if wantStep := map[bool]time.Duration{true: 100 * time.Millisecond}[i != 0 && i != 5]; (s.StepTime - wantStep).Abs() > time.Microsecond {
				t.Errorf("sample %d: step %v, want %v", i, s.StepTime, wantStep)
			}
		}
	})
}

func TestBadPagesAreCountedAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := time.Now().Add(2 * time.Second)
		b := newBench(t, func(context.Context, int, bool) (page, error) {
			switch since := time.Since(down); {
			case since < 0 || since > 8*time.Second:
				return page{body: []byte(goodPage)}, nil
			case since < 4*time.Second:
				return page{}, transportError(errors.New("connection refused"))
			}
			return page{body: []byte("# empty\n")}, nil
		})
		b.run(t, 12*time.Second)
		var warned []string
		for line := range strings.Lines(b.logs.String()) {
			if _, rest, ok := strings.Cut(line, "problem="); ok {
				warned = append(warned, strings.Fields(rest)[0])
			}
		}
		if diff := cmp.Diff([]string{"unreachable", "missing_name"}, warned); diff != "" {
			t.Errorf("warned about (-want +got):\n%s", diff)
		}
		if n := strings.Count(b.logs.String(), "good again"); n != 1 {
			t.Errorf("%d lines about the recovery, want 1", n)
		}
		for _, label := range []string{"unreachable", "missing_name"} {
			if n := b.count("penstock_engine_scrape_errors_total", label); n < 79 || n > 81 {
				t.Errorf("%v errors %s, want 80", n, label)
			}
		}
		if n := b.count("penstock_engine_scrape_seconds", ""); n != float64(len(b.asked)) {
			t.Errorf("%v scrapes observed, want %d", n, len(b.asked))
		}
	})
}

func TestDisagreementIsCountedNotHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(context.Context, int, bool) (page, error) {
			return page{body: []byte(goodPage + "other{ 1\n")}, nil // the scanner does not look there
		})
		b.run(t, 25*time.Second)
		if n := b.count("penstock_engine_scrape_errors_total", "disagrees"); n != 3 {
			t.Errorf("%v disagreements in 25 s, want one per check: 3", n)
		}
		if len(b.bad) > 0 {
			t.Errorf("bad %v, want samples to go on", b.bad[0])
		}
	})
}

func TestValidate(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:8000", "https://h:1/base", "unix:///run/vllm.sock"} {
		cfg := DefaultConfig()
		cfg.URL = url
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for want, change := range map[string]func(*Config){
		`url ""`:                  func(c *Config) { c.URL = "" },
		`url "localhost:8000"`:    func(c *Config) { c.URL = "localhost:8000" },
		`url "unix://run/x.sock"`: func(c *Config) { c.URL = "unix://run/x.sock" },
		`use http://host:port`:    func(c *Config) { c.URL = "http://user:secret@h:1" }, // would be logged
		`url "http://h:1/?a=b"`:   func(c *Config) { c.URL = "http://h:1/?a=b" },
		"interval 1ms":            func(c *Config) { c.Interval = time.Millisecond },
		"timeout 1s":              func(c *Config) { c.Timeout = time.Second },
		"max page 5":              func(c *Config) { c.MaxPage = 5 },
		"check every 0s":          func(c *Config) { c.CheckEvery = 0 },
	} {
		cfg := DefaultConfig()
		cfg.URL = "http://127.0.0.1:8000"
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %s", err, want)
		}
	}
}
