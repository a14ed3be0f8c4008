package health

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"penstock/reason"
	"penstock/scraper"
	"penstock/vllm"
)

func TestPulse(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	type step struct {
		at              float64
		c               reason.Reason
		sample          bool
		serving, taking bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"up after three good samples, lanes with the first", []step{
			{0, reason.Starting, false, false, false},
			{1, reason.OK, true, false, true},
			{1.05, reason.OK, true, false, true},
			{1.1, reason.OK, true, true, true},
		}},
		{"down at once, lanes given up after two seconds", []step{
			{0, reason.OK, true, false, true},
			{.1, reason.OK, true, false, true},
			{.2, reason.OK, true, true, true},
			{1, reason.Stale, false, true, true},
			{2, reason.Blind, false, false, true},
			{4, reason.Blind, false, false, true},
			{4.1, reason.Blind, false, false, false},
			{5, reason.OK, true, false, true},
		}},
		{"another bad condition does not start anew", []step{
			{0, reason.OK, true, false, true},
			{1, reason.Stuck, true, false, true},
			{2, reason.Blind, false, false, true},
			{3.1, reason.Blind, false, false, false},
		}},
		{"draining is at once", []step{
			{0, reason.OK, true, false, true},
			{1, reason.Draining, false, false, false},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := NewPulse(2 * time.Second)
			for _, s := range tc.steps {
				h.Look(at(s.at), s.c)
				if s.sample {
					h.Sample()
				}
				if h.Serving() != s.serving || h.Taking() != s.taking {
					t.Errorf("at %vs, %v: got serving %v, taking %v, want %v, %v", s.at, s.c, h.Serving(), h.Taking(), s.serving, s.taking)
				}
			}
		})
	}
}

func TestLanesAreLeftAtOnce(t *testing.T) {
	h, now := Pulse{}, time.Unix(1000, 0)
	h.Look(now, reason.OK)
	if h.Look(now, reason.Stale); !h.Taking() {
		t.Error("stale: lanes given up, want kept")
	}
	if h.Look(now, reason.Blind); h.Taking() {
		t.Error("blind with a LeaveAfter of 0: lanes kept, want given up")
	}
}

// TestBrief: what went wrong, on one line, without the engine's address.
func TestBrief(t *testing.T) {
	_, refused := net.Dial("tcp", "127.0.0.1:1")
	get := func(err error) error { return &url.Error{Op: "Get", URL: "http://gpu1:8000/metrics", Err: err} }
	for want, err := range map[string]error{
		"":                   nil,
		"connection refused": &scraper.Error{Problem: scraper.Unreachable, Err: refused},
		"no answer in time":  &scraper.Error{Problem: scraper.Timeout, Err: get(context.DeadlineExceeded)},
		"missing_name vllm:kv_cache_usage_perc: not on the page": &scraper.Error{Problem: scraper.Missing, Name: "vllm:kv_cache_usage_perc", Err: errors.New("not on\nthe page")},
		"its API answers 401":    &vllm.Error{Reason: reason.EngineDown, Status: 401, Err: errors.New("http://gpu1:8000/v1/models: status 401: key")},
		"no such host":           &vllm.Error{Err: get(errors.New("no such host"))},
		strings.Repeat("x", 120): errors.New(strings.Repeat("x", 1000)),
	} {
		if got := Brief(err); got != want {
			t.Errorf("Brief(%v) = %q, want %q", err, got, want)
		}
	}
}
