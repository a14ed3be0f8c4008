package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/vllm/simengine"
	"penstock/vllm/vllmtest"
)

// rest is what must be as before once every request is over.
type rest struct {
	Open, Running, Tokens float64 // at the gateway, in the ledger
	Waiting, Permits      float64
	Lanes, Messages       int // of the queue
	Outstanding           int // lanes of the registry with a live record
	InEngine              int
}

func (p *process) rest(e *vllmtest.Engine) rest {
	r := rest{
		Open: p.metric("penstock_open_requests"), Running: p.metric("penstock_inflight_requests"), Tokens: p.metric("penstock_inflight_tokens"),
		Waiting: p.metric("penstock_lane_backlog_requests"), Permits: p.metric("penstock_lane_permits", "state=used"),
		InEngine: e.InFlight(),
	}
	r.Lanes, r.Messages, _ = p.Lanes.Len()
	_, r.Outstanding = p.Records.Len()
	return r
}

// descriptors counts the open files of this process.
func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestCuts sends thousands of requests of which three in ten are cut by their
// client at a random point, and finds everything at rest afterwards.
func TestCuts(t *testing.T) {
	e := vllmtest.Start(t, vllmtest.WithBlocks(1025), vllmtest.WithStep(500*time.Microsecond), vllmtest.WithConfig(func(c *simengine.Config) { c.Engine.MaxSeqs = 32 }))
	p := startProcess(t, nil, e.URL())
	requests := 10_000
	if raced {
		requests = 2_000
	}
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	cutting := newCutter(p, 64)
	start := time.Now()
	cutting.run(t, requests, 1)
	took := time.Since(start)
	p.until("everything at rest", func() bool { return p.rest(e) == rest{} })
	p.client.CloseIdleConnections()
	// Those to the engine are pooled and close after 4 s.
	p.until("goroutines and descriptors as before", func() bool {
		return runtime.NumGoroutine() <= goroutines+8 && descriptors(t) <= files+8
	})
	goroutinesAfter, filesAfter := runtime.NumGoroutine(), descriptors(t)
	records, _ := p.Records.Len()
	if records > 16_384 {
		t.Errorf("%d records, want at most 16384 finished ones", records)
	}
	aborts := map[string]float64{}
	for _, stage := range []string{"queued", "running", "streaming"} {
		aborts[stage] = p.metric("penstock_aborts_total", "stage="+stage)
		if aborts[stage] == 0 {
			p.bound("no request was cut while %s", stage)
		}
	}
	t.Logf("%d requests in %v: %d whole, %d cut, %d refused; aborts %v, %d aborted in the engine; goroutines %d, then %d; descriptors %d, then %d; %d finished records",
		requests, took.Round(time.Millisecond), cutting.whole.Load(), cutting.cut.Load(), cutting.refused.Load(), aborts, e.Aborts(), goroutines, goroutinesAfter, files, filesAfter, records)
}

// cutter sends requests and cuts some.
type cutter struct {
	p                   *process
	workers             int
	whole, cut, refused atomic.Int64
}

func newCutter(p *process, workers int) *cutter { return &cutter{p: p, workers: workers} }

// run sends n requests, workers at a time. The same seed cuts the same ones.
func (c *cutter) run(t *testing.T, n int, seed uint64) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range c.workers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				c.one(t, rand.New(rand.NewPCG(seed, uint64(i))))
			}
		})
	}
	wg.Wait()
}

// one sends one request: plain or streamed, left alone in seven of ten, else cut
// after a random time (it waits, its headers are held, or it runs), after a random
// number of events, or after the usage event.
func (c *cutter) one(t *testing.T, random *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	plain, cuts := random.IntN(4) == 0, random.IntN(10) < 3
	events, afterUsage := -1, false
	if cuts {
		if kind := random.IntN(4); plain || kind < 2 {
			timer := time.AfterFunc(time.Duration(random.ExpFloat64()*float64(10*time.Millisecond)), cancel)
			defer timer.Stop()
		} else if kind == 2 {
			events = 1 + random.IntN(12)
		} else {
			afterUsage = true
		}
	}
	more := withUsage
	if plain {
		more = ""
	}
	resp, err := c.p.send(ctx, completion(10+random.IntN(200), 4+random.IntN(28), more))
	if err != nil {
		c.ended(t, cuts, err)
		return
	}
	defer resp.Body.Close()
	if told := (reply{status: resp.StatusCode, header: resp.Header, body: "{}"}); told.refused() {
		c.refused.Add(1)
		_, _ = io.Copy(io.Discard, resp.Body)
		return
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
		return
	}
	var seen strings.Builder
	piece := make([]byte, 1024)
	for {
		n, err := resp.Body.Read(piece)
		seen.Write(piece[:n])
		switch {
		case err == io.EOF:
			if !plain && !strings.HasSuffix(seen.String(), "data: [DONE]\n\n") {
				t.Errorf("a stream ended with %q", seen.String()[max(0, seen.Len()-100):])
			}
			c.whole.Add(1)
			return
		case err != nil:
			c.ended(t, cuts, err)
			return
		case afterUsage && strings.Contains(seen.String(), `"choices":[],"usage"`), events > 0 && strings.Count(seen.String(), "data: ") >= events:
			c.cut.Add(1)
			return
		}
	}
}

// ended counts a request whose connection ended early, which only we may cause.
func (c *cutter) ended(t *testing.T, cuts bool, err error) {
	if !cuts {
		t.Errorf("a request nobody cut: %v", err)
		return
	}
	c.cut.Add(1)
}
