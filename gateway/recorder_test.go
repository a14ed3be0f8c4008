package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a client without a network: what was flushed, and when.
type recorder struct {
	begun   time.Time
	mu      sync.Mutex
	header  http.Header
	status  int
	pending strings.Builder
	flushed strings.Builder
	at      []time.Duration // of each flush
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(200)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending.Write(b)
}

func (r *recorder) FlushError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushed.WriteString(r.pending.String())
	r.pending.Reset()
	r.at = append(r.at, time.Since(r.begun))
	return nil
}

func (r *recorder) code() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *recorder) body() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flushed.String() + r.pending.String()
}

// ask runs one request through the handler inside a synctest bubble; gone makes
// the client go away, finished is closed at the end.
func (s *stage) ask(body string, headers ...string) (rec *recorder, gone func(), finished chan struct{}) {
	ctx, gone := context.WithCancel(s.t.Context())
	req := httptest.NewRequestWithContext(ctx, "POST", chatPath, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	rec = &recorder{begun: time.Now(), header: http.Header{}}
	finished = make(chan struct{})
	go func() {
		defer close(finished)
		s.g.Handler().ServeHTTP(rec, req)
	}()
	synctest.Wait()
	return rec, gone, finished
}

func inBubble(t *testing.T, test func(t *testing.T, s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newStage(t, nil)) })
}

// counter reads one series.
func counter(t *testing.T, s *stage, name string, labels ...string) float64 {
	t.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			match := true
			for i := 0; i+1 < len(labels); i += 2 {
				match = match && have[labels[i]] == labels[i+1]
			}
			if match {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}
