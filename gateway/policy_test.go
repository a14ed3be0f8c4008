package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"penstock/policy"
	"penstock/policy/apikey"
)

const rulebook = `

tiers: [{name: vip}, {name: normal}]
tenants:
  acme: {keys: ["%s"], tier: vip, models: [q, small, "far*"], max-deadline: 5s}
  newcomer: {keys: ["%s"]}
models:
  small: [{model: q}]
  gone: [{model: nowhere}]
rules:
  - {name: far, when: {model: far}, then: {model: q, pool: h200}}
`

func parsePolicy(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ruled(t *testing.T) func(*Config, *Deps) {
	p := parsePolicy(t, fmt.Sprintf(rulebook, apikey.Hash("abc"), apikey.Hash("new")))
	return func(_ *Config, d *Deps) { d.Policy = p }
}

// TestPolicyAtTheDoor: who is not known, what one may not use, and what nobody serves
// are told apart.
func TestPolicyAtTheDoor(t *testing.T) {
	s := newStage(t, ruled(t)).serve()
	for _, c := range []struct {
		name, key, model string
		header           []string
		status           int
		text             string
	}{
		{"no key", "", "q", nil, 401, "No valid API key"},
		{"an unknown key", "abd", "q", nil, 401, "No valid API key"},
		{"a model of others", "abc", "other", nil, 403, "This API key may not use the model 'other'. GET /v1/models lists what it may."},
		{"a model nobody serves", "new", "other", nil, 404, "The model 'other' does not exist here"},
		{"a name for a model nobody serves", "new", "gone", nil, 404, "The model 'gone' does not exist here"},
		{"a pool without engines", "abc", "far", nil, 503, "No engine for model 'q' is in the pool 'h200', where the policy sends this request."},
		{"an unknown tier", "abc", "q", []string{"X-Penstock-Tier", "gold"}, 400, `The header x-penstock-tier is "gold". Send one of: vip, normal.`},
		{"a deadline above the tenant's", "abc", "q", []string{"X-Penstock-Start-Timeout-Ms", "6000"}, 400, "Send milliseconds from 1 to 5000."},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := append([]string{"Authorization", "Bearer " + c.key}, c.header...)
			r := s.post(`{"model":"`+c.model+`","messages":[]}`, header...)
			if text, _, _ := errorOf(t, readAll(t, r.Body)); r.StatusCode != c.status || !strings.Contains(text, c.text) {
				t.Errorf("%d %q, want %d %q", r.StatusCode, text, c.status, c.text)
			}
		})
	}
}

// TestPolicyIsMissing: before the policy was read nobody is let in, with or without a key.
func TestPolicyIsMissing(t *testing.T) {
	s := newStage(t, func(_ *Config, d *Deps) {
		missing := *policy.Default(nil, "")
		missing.Missing = true
		d.Policy = &missing
	}).serve()
	for path, ask := range map[string]func() (*http.Response, error){
		chatPath:     func() (*http.Response, error) { return s.post(`{"model":"q","messages":[]}`), nil },
		"/v1/models": func() (*http.Response, error) { return http.DefaultClient.Get(s.url + "/v1/models") },
	} {
		r, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if text, _, _ := errorOf(t, readAll(t, r.Body)); r.StatusCode != 503 || !strings.HasPrefix(text, "This gateway has not read its policy yet. Please try again") {
			t.Errorf("%s: %d %q, want 503 and why", path, r.StatusCode, text)
		}
	}
}

// TestAliasTravels: the engine is asked for the model it serves, in the lane of the
// tenant's tier.
func TestAliasTravels(t *testing.T) {
	s := newStage(t, ruled(t)).serve()
	answered := make(chan *http.Response, 1)
	go func() {
		answered <- s.post(`{"messages":[{"role":"user","content":"model"}], "model" : "small" ,"n":1}`, "Authorization", "Bearer abc")
	}()
	n := s.start()
	if want := `{"messages":[{"role":"user","content":"model"}], "model" : "q" ,"n":1}`; string(n.m.Body) != want || n.m.Lane.Model != "q" || n.m.Lane.Tier != "vip" || n.m.Lane.Tenant != "acme" {
		t.Errorf("body %s in lane %v, want %s in acme's vip lane of q", n.m.Body, n.m.Lane, want)
	}
	if d := n.m.Deadline.Sub(n.m.Opened); d != 5*time.Second {
		t.Errorf("deadline %v, want the tenant's longest", d)
	}
	n.done(`{}`)
	if r := <-answered; r.StatusCode != 200 {
		t.Errorf("status %d", r.StatusCode)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer abc")
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if list := readAll(t, r.Body); !strings.Contains(list, `"id":"q"`) || !strings.Contains(list, `"id":"small"`) || strings.Contains(list, "gone") {
		t.Errorf("models %s, want q and small", list)
	}
}

// TestReloadUnderLoad swaps the policy 1,000 times under requests of eight clients:
// each is answered, each in a lane of a policy that was in force, and a tier that comes
// has its series at once.
func TestReloadUnderLoad(t *testing.T) {
	policies := make([]*policy.Policy, 2)
	for i := range policies {
		policies[i] = parsePolicy(t, fmt.Sprintf("tiers: [{name: a%d}, {name: b%d}]\nmodels: {m: [{model: q}]}\nrules: [{when: {stream: true}, then: {type: s%d, tier: a%d}}]\n", i, i, i, i))
	}
	s := newStage(t, func(_ *Config, d *Deps) { d.Policy = policies[0] }).serve()
	ctx, stop := context.WithCancel(context.Background())
	var over atomic.Bool
	var nodes, clients sync.WaitGroup
	for range 4 {
		nodes.Go(func() {
			for {
				select {
				case m := <-s.queued:
					if v := strings.TrimPrefix(m.Lane.Type, "s"); m.Lane.Tier != "a"+v || m.Lane.Model != "q" {
						t.Errorf("lane %v is of no policy", m.Lane)
					}
					s.claim(m).done("data: [DONE]\n\n")
				case <-ctx.Done():
					return
				}
			}
		})
	}
	answered := make([]int, 8)
	for i := range answered {
		clients.Go(func() {
			for !over.Load() {
				r, err := http.DefaultClient.Post(s.url+chatPath, "application/json", strings.NewReader(`{"model":"m","stream":true,"messages":[]}`))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != 200 || !strings.Contains(string(body), "[DONE]") {
					t.Errorf("%d %q, %v; want 200", r.StatusCode, body, err)
					return
				}
				answered[i]++
			}
		})
	}
	for i := range 1000 {
		s.g.SetPolicy(policies[i%2])
		<-time.After(100 * time.Microsecond)
	}
	over.Store(true)
	clients.Wait()
	stop()
	nodes.Wait()
	s.g.SetPolicy(parsePolicy(t, "tiers: [{name: late}]\n"))
	if n, err := testutil.GatherAndCount(s.metrics, "penstock_service_seconds"); err != nil || n != 2*5 {
		t.Errorf("%d series of service times, want those of 5 tiers for q and other", n)
	}
	total := 0
	for _, n := range answered {
		total += n
	}
	if got := s.g.open.Load(); total < 8 || got != 0 {
		t.Errorf("%d answered, %d still open", total, got)
	}
	t.Logf("%d requests", total)
}
