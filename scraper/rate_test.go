package scraper

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/scheduler"
)

// TestTimersFireLate: on a real clock, whose timers are always a little late, most
// polls still come one interval apart and not two.
func TestTimersFireLate(t *testing.T) {
	page := readPage(t, "idle-start").body
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) }))
	defer server.Close()
	cfg := DefaultConfig()
	cfg.URL, cfg.Interval = server.URL, 20*time.Millisecond
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	var at []time.Time
	s, err := New(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler), func(p scheduler.Sample) {
		if at = append(at, p.At); len(at) == 31 {
			stop()
		}
	}, func(time.Time, error) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	var gaps []time.Duration
	for i := 1; i < len(at); i++ {
		gaps = append(gaps, at[i].Sub(at[i-1]))
	}
	if slices.Sort(gaps); len(gaps) < 30 || gaps[len(gaps)/2] > cfg.Interval*3/2 {
		t.Errorf("%d gaps between polls, median %v; want about %v", len(gaps), gaps[len(gaps)/2], cfg.Interval)
	}
}
