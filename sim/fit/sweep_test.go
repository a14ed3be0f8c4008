package fit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"penstock/sim/engine"
	"penstock/vllm/simengine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener without a network, so that time can be virtual.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// lab is a simulated engine behind HTTP, in a synctest bubble.
type lab struct {
	server *simengine.Server
	client http.Client
}

func newLab(t *testing.T, change func(*engine.Config)) *lab {
	cfg := simengine.DefaultConfig()
	e := &cfg.Engine
	e.Blocks, e.MaxModelLen, e.MaxSeqs, e.MaxBatchedTokens = 40_000/16+1, 9000, 128, 2048
	e.Base, e.PerPrefillToken, e.PerSeq, e.PerKVToken = 10*time.Millisecond, 66*time.Microsecond, 40*time.Microsecond, 94*time.Nanosecond
	if change != nil {
		change(e)
	}
	server, err := simengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &pipes{make(chan net.Conn), make(chan struct{})}
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		return ours, nil
	}}
	web := &http.Server{Handler: server.Handler()}
	ctx, cancel := context.WithCancel(t.Context())
	served, stepped := make(chan error, 1), make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	go func() { stepped <- server.Run(ctx) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		_ = web.Close()
		<-served
		<-stepped
	})
	return &lab{server, http.Client{Transport: transport}}
}

func (l *lab) engine() Engine { return Engine{Generate: l.generate, Gauges: l.gauges} }

func (l *lab) generate(ctx context.Context, prompt []int, output int, token func(int)) error {
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": prompt, "max_tokens": output, "ignore_eos": true, "temperature": 0, "stream": true})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sim/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for total := 0; lines.Scan(); {
		switch line := lines.Text(); {
		case strings.Contains(line, `"error"`):
			return errors.New(line)
		case strings.HasPrefix(line, "data: {"):
			total++
			token(total)
		case line == "data: [DONE]":
			return nil
		}
	}
	return errors.Join(lines.Err(), errors.New("cut"))
}

func (l *lab) gauges(context.Context) (running, waiting int, err error) {
	for line := range strings.Lines(string(l.server.Page("vllm:num_requests_running", "vllm:num_requests_waiting"))) {
		if name, value, ok := strings.Cut(line, "} "); ok {
			into := &running
			if strings.HasPrefix(name, "vllm:num_requests_waiting{") {
				into = &waiting
			}
			_, err = fmt.Sscan(value, into)
		}
	}
	return running, waiting, err
}

func config() Config {
	cfg := DefaultConfig()
	cfg.KVTokens, cfg.MaxModelLen, cfg.Seed = 40_000, 9000, 1
	cfg.Prompts, cfg.Batches = []int{64, 512, 2048, 8192}, []int{1, 8, 32, 64}
	return cfg
}

func TestRunFindsCoefficients(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    func(*engine.Config)
		want      Coefficients
		seats     int
		seatsFull bool
		chunk     int
	}{
		{"as an A100", nil, Coefficients{10e-3, 66e-6, 0, 40e-6, 94e-9}, 64, false, 2048},
		{"few seats, small steps", func(e *engine.Config) { e.MaxSeqs, e.MaxBatchedTokens = 24, 512 }, Coefficients{10e-3, 66e-6, 0, 40e-6, 94e-9}, 24, true, 512},
		{"slow, prompts in one step", func(e *engine.Config) {
			e.MaxBatchedTokens = 16_384
			e.PerPrefillContext = 10 * time.Microsecond
			e.Base, e.PerPrefillToken, e.PerSeq, e.PerKVToken = 45*time.Millisecond, 120*time.Microsecond, 300*time.Microsecond, 200*time.Nanosecond
		}, Coefficients{45e-3, 120e-6, 10e-9, 300e-6, 200e-9}, 64, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lab := newLab(t, c.change)
				told := 0
				r, err := Run(t.Context(), config(), lab.engine(), func(done, all int, left time.Duration) { told = done })
				if err != nil {
					t.Fatal(err)
				}
				for k, want := range c.want {
					if off := math.Abs(r.Coefficients[k] - want); off > 0.10*max(want, 5e-9) {
						t.Errorf("coefficient %d: got %g, want %g", k, r.Coefficients[k], want)
					}
				}
				if e := r.Errors(); e.All[0] > 0.02 || e.All[1] > 0.1 {
					t.Errorf("errors %+v, want a median below 2 %% and nine in ten below 10 %%", e)
				}
				if r.Seats != c.seats || r.SeatsFull != c.seatsFull || r.Chunk != c.chunk {
					t.Errorf("seats %d (all: %v), chunk %d; want %d (%v), %d", r.Seats, r.SeatsFull, r.Chunk, c.seats, c.seatsFull, c.chunk)
				}
				if len(r.Skipped) > 0 || told < len(r.Rows) {
					t.Errorf("skipped %q, progress told of %d for %d rows", r.Skipped, told, len(r.Rows))
				}
				if running, waiting, _ := lab.gauges(t.Context()); running+waiting > 0 {
					t.Errorf("%d run and %d wait afterwards, want none", running, waiting)
				}
				t.Logf("took %v (%d rows): %v, first token %.4f s late, errors %+v", r.Took, len(r.Rows), r.Coefficients, r.FirstToken, r.Errors())
			})
		})
	}
}

func TestRunLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lab := newLab(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(7*time.Second, cancel)
		if _, err := Run(ctx, config(), lab.engine(), func(int, int, time.Duration) {}); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want that it was cancelled", err)
		}
		if running, waiting, _ := lab.gauges(t.Context()); running+waiting > 0 {
			t.Errorf("%d run and %d wait after the end, want none", running, waiting)
		}
	})
}

func TestRunRefusesBusyEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lab := newLab(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		other := make(chan error, 1)
		go func() { other <- lab.generate(ctx, make([]int, 100), 8000, func(int) {}) }()
		time.Sleep(time.Second)
		if _, err := Run(t.Context(), config(), lab.engine(), func(int, int, time.Duration) {}); !errors.Is(err, ErrBusy) {
			t.Errorf("got error %v, want ErrBusy", err)
		}
		cfg := config()
		cfg.Force = true
		if _, err := Run(t.Context(), cfg, lab.engine(), func(int, int, time.Duration) {}); err != nil {
			t.Errorf("with Force: %v", err)
		}
		cancel()
		<-other
		time.Sleep(time.Second)
		go func() {
			time.Sleep(7 * time.Second)
			other <- lab.generate(t.Context(), make([]int, 100), 2000, func(int) {})
		}()
		if _, err := Run(t.Context(), config(), lab.engine(), func(int, int, time.Duration) {}); !errors.Is(err, ErrBusy) {
			t.Errorf("somebody came in the middle: got error %v, want ErrBusy", err)
		}
		<-other
	})
}

func TestRunIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Within = 10 * time.Second
		lab := newLab(t, nil)
		r, err := Run(t.Context(), cfg, lab.engine(), func(int, int, time.Duration) {})
		if err != nil {
			t.Fatal(err)
		}
		if r.Took > 17*time.Second || len(r.Skipped) != 1 {
			t.Errorf("took %v, skipped %q; want about 10 s and one line", r.Took, r.Skipped)
		}
		cfg.Within = time.Second
		if _, err := Run(t.Context(), cfg, lab.engine(), func(int, int, time.Duration) {}); err == nil || !strings.Contains(err.Error(), "no time left") {
			t.Errorf("a second: got error %v, want that it was too few points", err)
		}
	})
}

func TestRunEndsWithEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lab := newLab(t, nil)
		time.AfterFunc(5*time.Second, lab.server.Fail)
		if _, err := Run(t.Context(), config(), lab.engine(), func(int, int, time.Duration) {}); err == nil || errors.Is(err, ErrBusy) {
			t.Errorf("got error %v, want the engine's", err)
		}
	})
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*Config)
	}{
		{"KVTokens", func(c *Config) { c.KVTokens = 0 }},
		{"MaxModelLen", func(c *Config) { c.MaxModelLen = 100 }},
		{"MaxSeqs", func(c *Config) { c.MaxSeqs = -1 }},
		{"Prompts", func(c *Config) { c.Prompts = []int{0} }},
		{"Batches", func(c *Config) { c.Batches = []int{2000} }},
		{"Steps", func(c *Config) { c.Steps = 2 }},
		{"Within", func(c *Config) { c.Within = 0 }},
	} {
		cfg := config()
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: got error %v, want one that names it", c.field, err)
		}
	}
}
