package load

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestSteady(t *testing.T) {
	in := []Arrival{{At: 2 * time.Second, Prompt: 1}, {At: 3 * time.Second, Prompt: 2}, {At: 5 * time.Second, Prompt: 3}}
	got := Steady(in, 40*time.Second)
	for i, want := range []time.Duration{0, 10 * time.Second, 30 * time.Second} {
		if off := got[i].At - want; off.Abs() > time.Microsecond || got[i].Prompt != in[i].Prompt {
			t.Errorf("arrival %d: got %+v, want it at %v", i, got[i], want)
		}
	}
	if one := Steady(in[:1], time.Second); one[0].At != 0 {
		t.Errorf("one arrival: got it at %v, want 0", one[0].At)
	}
}

func TestBetween(t *testing.T) {
	good := []Attempt{{Status: http.StatusOK, TTFT: time.Second, Tokens: 4, Complete: true}}
	var outcomes []Outcome
	for i := range 10 {
		outcomes = append(outcomes, Outcome{Arrival: Arrival{At: time.Duration(i) * time.Second, Prompt: 6}, Attempts: good, End: time.Minute, Good: i%2 == 0})
	}
	outcomes = append(outcomes, Outcome{Arrival: Arrival{At: 4 * time.Second}}) // never sent
	s := Between(outcomes, 2*time.Second, 6*time.Second)
	if s.Requests != 4 || s.Good != 2 || s.Goodput != 0.5 || s.TokenGoodput != 5 || s.Span != 4*time.Second {
		t.Errorf("got %d requests, %d good, %.2f/s, %.1f tokens/s in %v; want 4, 2, 0.50, 5.0, 4s", s.Requests, s.Good, s.Goodput, s.TokenGoodput, s.Span)
	}
}

func TestAPIKeyIsSent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-penstock-reason", r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	out, err := Run(t.Context(), Config{URL: server.URL, Model: "m", APIKey: "k", Arrivals: []Arrival{{Prompt: 1, Output: 1}}, BytesPerToken: 1, SLO: DefaultSLO})
	if err != nil {
		t.Fatal(err)
	}
	if got := out[0].Last().Reason; got != "Bearer k" {
		t.Errorf("Authorization %q, want \"Bearer k\"", got)
	}
}
