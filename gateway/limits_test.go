package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/fleet"
	"penstock/policy"
	"penstock/quota"
	"penstock/reason"
	"penstock/registry"
)

const question = `{"model":"q","messages":[{"role":"user","content":"hi"}],"max_tokens":10}`

// held gives the one tenant there is limits, as its policy file would.
func held(t *testing.T, yaml string) (func(*Config, *Deps), []quota.Limit) {
	t.Helper()
	p, err := policy.Parse([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	who, _ := p.Who("")
	return func(_ *Config, d *Deps) { d.Policy = p }, p.Limits(nil, &who, "q", 0)
}

func requestsPerMinute(n int) string {
	return fmt.Sprintf("tenants: {default: {quota: {requests-per-minute: %d}}}", n)
}

// fill opens n requests of so many tokens under the limits.
func (s *stage) fill(n, tokens int, limits []quota.Limit) {
	s.t.Helper()
	for i := range n {
		a, err := s.records.Open(context.Background(), registry.Request{ID: "fill " + strconv.Itoa(i), Tokens: tokens, Deadline: time.Now().Add(time.Minute), Limit: time.Hour, Limits: limits}, registry.Drain{Engines: 1})
		if err != nil || a.Reason != reason.OK {
			s.t.Fatalf("fill %d: %+v, %v", i, a, err)
		}
	}
}

func TestLimitRefusesAtOnce(t *testing.T) {
	for _, c := range []struct{ name, yaml, text, code, retry string }{
		{"requests", requestsPerMinute(2), "Your limit of 2 requests per minute is reached. Please try again in ", "rate_limit_exceeded", ""},
		{"model", "tenants: {default: {model-quota: {q: {tokens-per-minute: 30}}}}", "Your limit of 30 tokens per minute for model 'q' is reached. ", "rate_limit_exceeded", ""},
		{"shared", "quota: {tokens-per-minute: 30}", "The limit of 30 tokens per minute that you share with others is reached. ", "rate_limit_exceeded", ""},
		{"window", "tenants: {default: {quota: {windows: [{requests: 1, per: 1h}]}}}", "Your limit of 1 requests per hour is reached. ", "rate_limit_exceeded", ""},
		{"budget's rest", "tenants: {default: {quota: {windows: [{tokens: 30, per: 24h}]}}}", "Your budget of 30 tokens per day has 5 left, and this request is expected to take 1", "insufficient_quota", "false"},
		{"budget", "tenants: {default: {quota: {windows: [{tokens: 25, per: 24h}]}}}", "Your budget of 25 tokens per day is used up. Ask whoever runs this service for more.", "insufficient_quota", "false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			change, limits := held(t, c.yaml)
			s := newStage(t, change).serve()
			s.fill(1, 25, limits)
			resp := s.post(question)
			message, _, code := errorOf(t, readAll(t, resp.Body))
			if resp.StatusCode != http.StatusTooManyRequests || code != c.code || !strings.HasPrefix(message, c.text) {
				t.Errorf("%d %s %q, want 429 %s %q", resp.StatusCode, code, message, c.code, c.text)
			}
			if got := resp.Header.Get("X-Should-Retry"); got != c.retry {
				t.Errorf("x-should-retry %q, want %q", got, c.retry)
			}
			seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
			if told := seconds >= 1 && seconds <= 60; told == (c.retry == "false") {
				t.Errorf("retry-after %q of %s", resp.Header.Get("Retry-After"), c.code)
			}
			if resp.Header.Get("X-Ratelimit-Remaining-Requests")+resp.Header.Get("X-Ratelimit-Remaining-Tokens") == "" {
				t.Errorf("no x-ratelimit headers: %v", resp.Header)
			}
		})
	}
}

// A wait that is short is slept, and the answer says what is left.
func TestLimitIsWaitedFor(t *testing.T) {
	change, limits := held(t, "tenants: {default: {quota: {requests-per-minute: 600, tokens-per-minute: 60000}}}")
	s := newStage(t, change).serve()
	s.fill(500, 1, limits)
	go func() { s.start().done(`{"choices":[]}`) }()
	begin := time.Now()
	resp := s.post(question)
	if took := time.Since(begin); resp.StatusCode != http.StatusOK || took < 50*time.Millisecond {
		t.Errorf("status %d after %v, want 200 after 100 ms", resp.StatusCode, took)
	}
	for header, want := range map[string]string{
		"X-Ratelimit-Limit-Requests": "600", "X-Ratelimit-Limit-Tokens": "60000", "X-Ratelimit-Remaining-Requests": "0",
	} {
		if got := resp.Header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	for _, header := range []string{"X-Ratelimit-Reset-Requests", "X-Ratelimit-Reset-Tokens"} {
		if d, err := time.ParseDuration(resp.Header.Get(header)); err != nil || d <= 0 || d > time.Minute {
			t.Errorf("%s: %q", header, resp.Header.Get(header))
		}
	}
	_ = readAll(t, resp.Body)
	eventually(t, "settled with the answer's usage", func() bool { return s.records.Quota().Settled == 9 })
}

func TestLimitIsNotWaitedForLongerThanTheClient(t *testing.T) {
	change, limits := held(t, requestsPerMinute(300)) // one each 200 ms
	s := newStage(t, change).serve()
	s.fill(250, 1, limits)
	if resp := s.post(question, "X-Request-Timeout", "100ms"); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("status %d for a client that waits 100 ms, want 429", resp.StatusCode)
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.do(ctx, http.DefaultClient, question); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("post: %v, want the client to give up", err)
	}
	eventually(t, "a client that is gone sleeps no longer", func() bool { return s.g.open.Load() == 0 })
	if took := time.Since(begin); took > 180*time.Millisecond {
		t.Logf("it was noticed after %v", took)
	}
}

// away is a store that does not answer.
type away struct {
	registry.Records
	down atomic.Bool
}

func (a *away) Open(ctx context.Context, q registry.Request, d registry.Drain) (registry.Admission, error) {
	if a.down.Load() {
		return registry.Admission{}, registry.ErrAway
	}
	return a.Records.Open(ctx, q, d)
}

// Without its store a gateway admits nobody; the first are patient, then all are told
// within 50 ms.
func TestLimitWithoutItsStore(t *testing.T) {
	store := &away{}
	change, _ := held(t, requestsPerMinute(600))
	s := newStage(t, func(c *Config, d *Deps) {
		change(c, d)
		store.Records, d.Records = d.Records, store
	}).serve()
	store.down.Store(true)
	if resp := s.post(question); resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("status %d, want 503", resp.StatusCode)
	}
	begin := time.Now()
	resp := s.post(question)
	if took := time.Since(begin); resp.StatusCode != http.StatusServiceUnavailable || took > 50*time.Millisecond {
		t.Errorf("status %d after %v, want 503 within 50 ms", resp.StatusCode, took)
	}
	store.down.Store(false)
	go func() { s.start().done(`{"choices":[]}`) }()
	if resp := s.post(question); resp.StatusCode != http.StatusOK {
		t.Errorf("status %d once it is back, want 200", resp.StatusCode)
	}
}

func TestSendRateIsRefused(t *testing.T) {
	s := newStage(t, func(_ *Config, d *Deps) { d.Policy = parsePolicy(t, "lanes: {default: {sends-per-second: 1}}") }).serve()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.post(plainBody).Body.Close()
	}()
	s.start().done(`{}`)
	<-done
	r := s.post(plainBody)
	text, _, code := errorOf(t, readAll(t, r.Body))
	if r.StatusCode != 429 || code != "rate_limit_exceeded" || r.Header.Get("Retry-After") != "1" || !strings.HasPrefix(text, "Your limit of 1 requests per second for model 'q' at this gateway is reached. Please try again in 1 second") {
		t.Errorf("%d %s %q, retry after %s", r.StatusCode, code, text, r.Header.Get("Retry-After"))
	}
}

// TestTooImpatient: a client that would not wait for the answer itself is told so at
// once.
func TestTooImpatient(t *testing.T) {
	s := newStage(t, func(_ *Config, d *Deps) {
		d.Rows = func() []fleet.Row {
			return []fleet.Row{{Node: "n1", Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, FirstToken: 100 * time.Millisecond, Step: 50 * time.Millisecond, At: time.Now()}}
		}
	}).serve()
	r := s.post(`{"model":"q","max_tokens":100,"messages":[]}`, "X-Request-Timeout", "6")
	text, _, _ := errorOf(t, readAll(t, r.Body))
	if r.StatusCode != 504 || r.Header.Get("X-Should-Retry") != "false" || r.Header.Get("Retry-After") != "" || text != "The answer of model 'q' takes about 6 s, and the client's own timeout is 6 s, of which a fifth is kept for the way. Raise the timeout or lower max_tokens." {
		t.Errorf("%d %v %q, want 504 without a retry", r.StatusCode, r.Header, text)
	}
	for _, c := range []struct {
		name, body, header string
		want               time.Duration
	}{
		{"what the answer leaves", `{"model":"q","max_tokens":10,"messages":[]}`, "X-Request-Timeout", 4800*time.Millisecond - 600*time.Millisecond},
		{"a stream's read timeout needs its first token", `{"model":"q","max_tokens":100,"stream":true,"messages":[]}`, "X-Stainless-Read-Timeout", 4700 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			done := make(chan *http.Response, 1)
			go func() { done <- s.post(c.body, c.header, "6") }()
			n := s.start()
			if d := n.m.Deadline.Sub(n.m.Opened); d != c.want {
				t.Errorf("deadline %v, want %v", d, c.want)
			}
			n.done(`{}`)
			(<-done).Body.Close()
		})
	}
}
