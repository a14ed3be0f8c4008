// Package load is an open-loop client for OpenAI-compatible servers: it sends
// completions at given times, as impatient as people are, and says of each
// request what came of it. The demo and the end-to-end runs use it.
package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Arrival is one request of a workload.
type Arrival struct {
	At     time.Duration // from the start of the run
	Prompt int           // tokens
	Output int           // tokens, generated in full (ignore_eos) unless Config.Natural
}

// SLO is what makes an answered request good.
type SLO struct {
	TTFT time.Duration // from sending the attempt to its first token
	TPOT time.Duration // mean time per output token after the first
	Gap  time.Duration // longest time between two tokens
}

// DefaultSLO are the limits the project's goodput figures use.
var DefaultSLO = SLO{TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond, Gap: time.Second}

// Config of one run.
type Config struct {
	URL           string // http://host:port
	Model         string
	APIKey        string // sent as a bearer token; "" = none
	Arrivals      []Arrival
	BytesPerToken float64       // prompt bytes sent for each prompt token
	Natural       bool          // answers end where the engine ends them, at Output tokens at the latest
	Patience      time.Duration // without a first token by then the client closes; 0 = waits for ever
	GiveUp        time.Duration // no attempt is begun later than this after the first; 0 = no limit
	Retries       int           // further attempts of a request that was refused or ran out of patience
	ObeyRetry     bool          // come back exactly at Retry-After; otherwise after Backoff x 2^k x (0.5..1.5)
	Backoff       time.Duration
	SLO           SLO
	Seed          uint64
	Progress      func(done, total int) // called after each finished request; may be nil
}

// Attempt is what one try met.
type Attempt struct {
	Status     int           // HTTP status; 0 = no answer (gave up, or the connection failed)
	Reason     string        // x-penstock-reason, an error code, "patience", or ""
	RetryAfter time.Duration // as told; 0 = not told
	TTFT       time.Duration // 0 = no token
	TPOT       time.Duration
	Gap        time.Duration
	Tokens     int // output tokens received
	Complete   bool
}

// Outcome is one request of the workload with all its attempts.
type Outcome struct {
	Arrival  Arrival
	Attempts []Attempt
	End      time.Duration // of the last attempt, from the start of the run
	Good     bool
}

// Last is the attempt that decided the outcome.
func (o *Outcome) Last() *Attempt { return &o.Attempts[len(o.Attempts)-1] }

// Run sends the whole workload and waits for every request's end. The outcomes
// are in the order of cfg.Arrivals.
func Run(ctx context.Context, cfg Config) ([]Outcome, error) {
	if cfg.URL == "" || cfg.Model == "" {
		return nil, errors.New("load: URL and Model must be set")
	}
	transport := &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, DisableCompression: true}
	defer transport.CloseIdleConnections()
	c := &client{Config: cfg, http: &http.Client{Transport: transport}}
	outcomes := make([]Outcome, len(cfg.Arrivals))
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	start := time.Now()
	for i := range cfg.Arrivals {
		if !sleepUntil(ctx, start.Add(cfg.Arrivals[i].At)) {
			break
		}
		wg.Go(func() {
			outcomes[i] = c.request(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			if done++; cfg.Progress != nil {
				cfg.Progress(done, len(cfg.Arrivals))
			}
		})
	}
	wg.Wait()
	return outcomes, ctx.Err()
}

type client struct {
	Config
	http *http.Client
}

func (c *client) request(ctx context.Context, i int) Outcome {
	arrival := c.Arrivals[i]
	random := rand.New(rand.NewPCG(c.Seed, uint64(i)))
	body := c.body(random, arrival)
	out := Outcome{Arrival: arrival}
	first := time.Now()
	for try := 0; ; try++ {
		a := c.attempt(ctx, body, arrival)
		out.Attempts = append(out.Attempts, a)
		if a.Complete || try == c.Retries || ctx.Err() != nil || a.Status == http.StatusBadRequest {
			break
		}
		pause := time.Duration(float64(c.Backoff) * float64(int(1)<<try) * (0.5 + random.Float64()))
		if c.ObeyRetry && a.RetryAfter > 0 {
			pause = a.RetryAfter
		}
		again := time.Now().Add(pause)
		if c.GiveUp > 0 && again.Sub(first) > c.GiveUp || !sleepUntil(ctx, again) {
			break
		}
	}
	out.End = arrival.At + time.Since(first)
	a := out.Last()
	out.Good = a.Complete && a.TTFT <= c.SLO.TTFT && a.TPOT <= c.SLO.TPOT && a.Gap <= c.SLO.Gap
	return out
}

// body makes a prompt without a prefix in common with any other.
func (c *client) body(random *rand.Rand, a Arrival) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	text := make([]byte, max(1, int(float64(a.Prompt)*c.BytesPerToken)))
	for i := range text {
		text[i] = letters[random.IntN(len(letters))]
	}
	return fmt.Appendf(nil, `{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":%t,"temperature":0,"stream":true}`, c.Model, text, a.Output, !c.Natural)
}

func (c *client) attempt(ctx context.Context, body []byte, arrival Arrival) (a Attempt) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var patience *time.Timer
	if c.Patience > 0 {
		patience = time.AfterFunc(c.Patience, cancel)
		defer patience.Stop()
	}
	sent := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return Attempt{Reason: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	if c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Attempt{Reason: gaveUp(ctx, "connection_failed")}
	}
	defer func() { _ = resp.Body.Close() }()
	a.Status = resp.StatusCode
	a.Reason = resp.Header.Get("x-penstock-reason")
	if resp.StatusCode != http.StatusOK {
		a.RetryAfter = retryAfter(resp.Header)
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if a.Reason == "" {
			a.Reason = errorCode(answer)
		}
		return a
	}
	c.read(ctx, resp.Body, sent, patience, &a)
	return a
}

// read follows a stream to its end, noting the times of its tokens.
func (c *client) read(ctx context.Context, body io.Reader, sent time.Time, patience *time.Timer, a *Attempt) {
	lines := bufio.NewReaderSize(body, 16<<10)
	var first, last time.Time
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			a.Reason = gaveUp(ctx, "stream_cut")
			return
		}
		data, isData := bytes.CutPrefix(line, []byte("data: "))
		switch {
		case !isData:
			continue
		case bytes.HasPrefix(data, []byte("[DONE]")):
			a.Complete = a.Reason == ""
			if a.Tokens > 1 {
				a.TPOT = last.Sub(first) / time.Duration(a.Tokens-1)
			}
			return
		case bytes.HasPrefix(data, []byte(`{"error"`)):
			a.Reason = errorCode(data)
			continue
		case bytes.Contains(data, []byte(`"choices":[]`)):
			continue
		}
		now := time.Now()
		if a.Tokens++; a.Tokens == 1 {
			if patience != nil {
				patience.Stop()
			}
			first, a.TTFT = now, now.Sub(sent)
		} else {
			a.Gap = max(a.Gap, now.Sub(last))
		}
		last = now
	}
}

func gaveUp(ctx context.Context, otherwise string) string {
	if ctx.Err() != nil {
		return "patience"
	}
	return otherwise
}

// retryAfter reads the precise header first, as the OpenAI clients do.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("retry-after-ms"), 64); err == nil && ms > 0 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	if s, err := strconv.ParseFloat(h.Get("retry-after"), 64); err == nil && s > 0 {
		return time.Duration(s * float64(time.Second))
	}
	return 0
}

// errorCode is the code of an OpenAI or vLLM error body; vLLM's is a number.
func errorCode(body []byte) string {
	var answer struct {
		Error struct {
			Code any `json:"code"`
			Type any `json:"type"`
		} `json:"error"`
	}
	if json.Unmarshal(bytes.TrimSpace(body), &answer) != nil {
		return "unreadable_error"
	}
	if answer.Error.Code == nil {
		return fmt.Sprint(answer.Error.Type)
	}
	return strings.TrimSpace(fmt.Sprint(answer.Error.Code))
}

func sleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
