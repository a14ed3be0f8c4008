package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/fleet"
	"penstock/gateway/outcome"
	"penstock/gateway/relay"
	"penstock/lane"
	"penstock/policy/apikey"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

const onwardRules = `
tiers: [{name: vip, slo-ttft: 1s}, {name: normal, slo-ttft: 20s}]
tenants:
  acme: {keys: ["%s"], tier: vip, downgrade: true, quota: {tokens-per-minute: 1000000, requests-per-minute: 100}}
  plain: {keys: ["%s"], tier: vip}
filters:
  - {name: guard, when: {headers: {x-guarded: "*"}}, model: guard, passes: ["safe*"], refusal: "Against the rules."}
  - {name: second, when: {headers: {x-guarded: "2"}}, model: guard, passes: ["safe*"]}
  - {name: away, when: {headers: {x-guarded: away}}, model: nobody, passes: ["safe*"]}
reroutes:
  - {name: bigger, from: {model: q}, on: [context_length_exceeded, 422, tries_used], to: {model: big}}
  - {name: retired, from: {model: retired}, on: [model_not_found], to: {model: q}}
  - {name: astray, from: {model: q}, on: [418], to: {model: nobody}}
`

const (
	tooLongBody = `{"error":{"message":"This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens.","type":"BadRequestError","param":"input_tokens","code":400}}`
	acme        = "Bearer abc"
)

// lanesFull is the record store, in which some lanes take nothing.
type lanesFull struct {
	registry.Records

	mu     sync.Mutex
	full   map[string]registry.Admission // by "tier/model"
	opened []registry.Request
}

func (r *lanesFull) Open(ctx context.Context, q registry.Request, d registry.Drain) (registry.Admission, error) {
	r.mu.Lock()
	r.opened = append(r.opened, q)
	a, full := r.full[q.Lane.Tier+"/"+q.Lane.Model]
	r.mu.Unlock()
	if full {
		return a, nil
	}
	return r.Records.Open(ctx, q, d)
}

// onWay runs test on a stage with engines for q, big and guard; full are lanes that
// refuse.
func onWay(t *testing.T, full map[string]registry.Admission, test func(t *testing.T, s *stage, r *lanesFull)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &lanesFull{full: full}
		s := newStage(t, func(_ *Config, d *Deps) {
			d.Policy = parsePolicy(t, fmt.Sprintf(onwardRules, apikey.Hash("abc"), apikey.Hash("plain")))
			r.Records, d.Records = d.Records, r
			d.Rows = func() (rows []fleet.Row) {
				for i, model := range []string{"q", "big", "guard"} {
					rows = append(rows, fleet.Row{Node: fmt.Sprint("n", i+1), Models: fleet.Models(model), State: reason.OK, DrainRate: 1e6, FirstToken: 50 * time.Millisecond, At: time.Now()})
				}
				return rows
			}
		})
		for i, model := range []string{"q", "big", "guard"} {
			if err := s.records.PutEngine(t.Context(), registry.Engine{Node: fmt.Sprint("n", i+1), Models: []string{model}, State: reason.OK}); err != nil {
				t.Fatal(err)
			}
		}
		test(t, s, r)
	})
}

func (n *node) refuse(status int, body string) {
	n.finish(response.Event{Kind: response.Failed, Status: status, Reason: reason.EngineRefused, Payload: []byte(body), Usage: response.Usage{Known: true}})
}

func (n *node) says(answer string) {
	n.done(`{"choices":[{"message":{"role":"assistant","content":"` + answer + `"}}]}`)
}

// TestReroute: what the small model refuses the big one answers; the client sees
// nothing of the first but the way, and is charged for the second alone.
func TestReroute(t *testing.T) {
	for name, body := range map[string]string{"plain": plainBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			onWay(t, nil, func(t *testing.T, s *stage, r *lanesFull) {
				rec, _, finished := s.ask(body, "Authorization", acme, "X-Penstock-Start-Timeout-Ms", "9000", "X-Request-Id", "mine")
				small := s.start()
				time.Sleep(2 * time.Second)
				small.refuse(400, tooLongBody)
				big := s.start()
				if big.m.Lane != (lane.Key{Tier: "vip", Type: "chat", Model: "big", Tenant: "acme"}) || !strings.Contains(string(big.m.Body), `"model":"big"`) || big.m.ID == small.m.ID {
					t.Errorf("then %s in lane %v with %s", big.m.ID, big.m.Lane, big.m.Body)
				}
				if !big.m.Deadline.Equal(small.m.Deadline) || !big.m.Opened.Equal(small.m.Opened) || !big.m.Patient {
					t.Errorf("deadline %v of a request of %v, want it as it was, %v", big.m.Deadline, big.m.Opened, small.m.Deadline)
				}
				if name == "stream" {
					big.first(chunk1)
					big.send(response.Chunk, doneEvent)
					big.done("")
				} else {
					big.done("{}")
				}
				<-finished
				if got := rec.header.Get("X-Penstock-Route"); rec.code() != 200 || strings.Contains(rec.body(), "error") || got != "vip/chat/q context_length_exceeded, vip/chat/big" {
					t.Errorf("%d by %q: %s", rec.code(), got, rec.body())
				}
				if len(r.opened) != 2 || len(r.opened[0].Limits) != 2 || len(r.opened[1].Limits) != 1 || r.opened[1].Limit > 7*time.Second {
					t.Errorf("opened %+v, want the second without a second request counted, and within what is left", r.opened)
				}
				if got := s.records.Quota(); got.Settled != 9 || got.Reserved-got.Refunded != got.Settled {
					t.Errorf("quota %+v, want 9 tokens, once", got)
				}
				log := s.log.String()
				if strings.Count(log, "request finished") != 1 || !strings.Contains(log, `lane=vip/chat/big//acme`) || !strings.Contains(log, `route="vip/chat/q context_length_exceeded, vip/chat/big"`) {
					t.Errorf("log %s", log)
				}
				if n := counter(t, s, "penstock_reroutes_total", "move", "reroute", "trouble", "context_length_exceeded"); n != 1 {
					t.Errorf("%v reroutes counted", n)
				}
				if got := s.g.DebugState(); len(got.Routed) != 1 || got.Routed[0].Route == "" || got.Routed[0].Label != "mine" || got.Routed[0].Outcome != "ok" || len(got.Failed) != 0 || len(got.Reasons) != 0 {
					t.Errorf("journal %+v, %+v, %+v", got.Routed, got.Failed, got.Reasons)
				}
			})
		})
	}
}

// TestRerouteOnce: what the second lane makes of a request is its outcome; where no lane
// takes it, what can be come back for goes before what cannot.
func TestRerouteOnce(t *testing.T) {
	busy := registry.Admission{Reason: reason.Overloaded, Ahead: 3, Wait: 20 * time.Second, RetryAfter: 18 * time.Second}
	for _, c := range []struct {
		name, model string
		full        map[string]registry.Admission
		play        func(s *stage)
		status      int
		why, body   string
		route       string
	}{
		{"the second refuses too", "q", nil, func(s *stage) {
			s.start().refuse(400, tooLongBody)
			s.start().refuse(400, strings.ReplaceAll(tooLongBody, "1024", "9999"))
		}, 400, "engine_refused", "9999", "vip/chat/q context_length_exceeded, vip/chat/big"},
		{"a refusal that nothing is for", "q", nil, func(s *stage) { s.start().refuse(400, `{"error":{"message":"bad"}}`) }, 400, "engine_refused", "bad", ""},
		{"a status", "q", nil, func(s *stage) { s.start().refuse(422, `{}`); s.start().says("x") }, 200, "", "x", "vip/chat/q 422, vip/chat/big"},
		{"the agent's word", "q", nil, func(s *stage) {
			s.start().finish(response.Event{Kind: response.Dropped, Reason: reason.TooLarge})
			s.start().says("x")
		}, 200, "", "x", "vip/chat/q context_length_exceeded, vip/chat/big"},
		{"tries used", "q", nil, func(s *stage) {
			s.start().finish(response.Event{Kind: response.Failed, Reason: reason.TriesUsed})
			s.start().says("x")
		}, 200, "", "x", "vip/chat/q tries_used, vip/chat/big"},
		{"a model that is gone", "retired", nil, func(s *stage) { s.start().says("x") }, 200, "", "x", "vip/chat/retired model_not_found, vip/chat/q"},
		{"to nowhere", "q", nil, func(s *stage) { s.start().refuse(418, `{"error":{"message":"teapot"}}`) }, 418, "engine_refused", "teapot", "vip/chat/q 418, vip/chat/nobody"},
		{"the second is busy", "q", map[string]registry.Admission{"vip/big": busy}, func(s *stage) { s.start().refuse(400, tooLongBody) }, 429, "server_is_overloaded", "18 seconds", "vip/chat/q context_length_exceeded, vip/chat/big"},
		{"lost after the first byte", "q", nil, func(s *stage) {
			n := s.start()
			n.first(chunk1)
			n.finish(response.Event{Kind: response.Failed, Reason: reason.TriesUsed})
		}, 200, "", "tries_used", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			onWay(t, c.full, func(t *testing.T, s *stage, _ *lanesFull) {
				body := strings.Replace(plainBody, `"q"`, `"`+c.model+`"`, 1)
				if strings.Contains(c.name, "byte") {
					body = streamBody
				}
				rec, _, finished := s.ask(body, "Authorization", "Bearer plain")
				c.play(s)
				<-finished
				if got := rec.header.Get("X-Penstock-Route"); rec.code() != c.status || rec.header.Get("X-Penstock-Reason") != c.why || !strings.Contains(rec.body(), c.body) || got != c.route {
					t.Errorf("%d %v by %q: %s", rec.code(), rec.header, got, rec.body())
				}
				if len(s.queued) != 0 {
					t.Error("it was sent on again")
				}
			})
		})
	}
}

func TestDowngrade(t *testing.T) {
	full := registry.Admission{Reason: reason.LaneFull, Ahead: 9, Wait: 9 * time.Second, RetryAfter: 9 * time.Second}
	busy := registry.Admission{Reason: reason.Overloaded, Ahead: 3, Wait: 2 * time.Second, RetryAfter: 2 * time.Second}
	for _, c := range []struct {
		name, key, header string
		full              map[string]registry.Admission
		status            int
		why, retry, route string
	}{
		{"its tenant allows it", "abc", "", map[string]registry.Admission{"vip/q": full}, 200, "", "", "vip/chat/q lane_full, normal/chat/q"},
		{"overloaded", "abc", "", map[string]registry.Admission{"vip/q": busy}, 200, "", "", "vip/chat/q server_is_overloaded, normal/chat/q"},
		{"its tenant says nothing", "plain", "", map[string]registry.Admission{"vip/q": full}, 429, "lane_full", "9", ""},
		{"the request allows it", "plain", "True", map[string]registry.Admission{"vip/q": full}, 200, "", "", "vip/chat/q lane_full, normal/chat/q"},
		{"the request forbids it", "abc", "false", map[string]registry.Admission{"vip/q": full}, 429, "lane_full", "9", ""},
		{"the request says neither", "abc", "maybe", nil, 400, "invalid_request", "", ""},
		{"both are full: who is free first", "abc", "", map[string]registry.Admission{"vip/q": full, "normal/q": busy}, 429, "server_is_overloaded", "2", "vip/chat/q lane_full, normal/chat/q"},
		{"and the other way round", "abc", "", map[string]registry.Admission{"vip/q": busy, "normal/q": full}, 429, "server_is_overloaded", "2", "vip/chat/q server_is_overloaded, normal/chat/q"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onWay(t, c.full, func(t *testing.T, s *stage, r *lanesFull) {
				rec, _, finished := s.ask(plainBody, "Authorization", "Bearer "+c.key, "X-Penstock-Downgrade", c.header)
				if c.status == 200 {
					n := s.start()
					if n.m.Lane.Tier != "normal" || n.m.SLOTTFT != 20*time.Second || n.m.Deadline.Sub(n.m.Opened) != 30*time.Second || r.opened[1].Limit < 19*time.Second {
						t.Errorf("in %v with %+v, want the lower tier's target and its own deadline", n.m.Lane, n.m)
					}
					n.says("x")
				}
				<-finished
				if h := rec.header; rec.code() != c.status || h.Get("X-Penstock-Reason") != c.why || h.Get("Retry-After") != c.retry || h.Get("X-Penstock-Route") != c.route {
					t.Errorf("%d %v: %s", rec.code(), h, rec.body())
				}
			})
		})
	}
}

// TestFilters: a filter's answer lets a request pass or stops it, and what cannot be
// read is not let through.
func TestFilters(t *testing.T) {
	for _, c := range []struct {
		name, guarded string
		play          func(s *stage)
		status        int
		why, text     string
		route         string
		result        outcome.Filter
	}{
		{"passes", "1", func(s *stage) { s.start().says("Safe"); s.start().says("x") }, 200, "", "x", "vip/filter/guard passed, vip/chat/q", outcome.FilterPassed},
		{"two, and a reroute", "2", func(s *stage) {
			s.start().says("safe")
			s.start().says("safe")
			s.start().refuse(400, tooLongBody)
			s.start().says("x")
		}, 200, "", "x", "vip/filter/guard passed, vip/filter/guard passed, vip/chat/q context_length_exceeded, vip/chat/big", outcome.FilterPassed},
		{"stopped", "1", func(s *stage) { s.start().says(`unsafe\nS1`) }, 400, "content_filter", `"message":"Against the rules."`, "", outcome.FilterStopped},
		{"stopped by the second", "2", func(s *stage) { s.start().says("safe"); s.start().says("unsafe") }, 400, "content_filter", "stopped by the filter 'second'", "vip/filter/guard passed, vip/filter/guard", outcome.FilterStopped},
		{"no words", "1", func(s *stage) { s.start().done("{}") }, 400, "content_filter", "Against the rules.", "", outcome.FilterStopped},
		{"nobody to ask", "away", func(s *stage) { s.start().says("safe") }, 503, "no_engine", "The filter 'away' reads requests first and could not read this one. No engine for model 'nobody' is reachable.", "vip/filter/guard passed, vip/filter/nobody", outcome.FilterFailed},
		{"too long for it", "1", func(s *stage) { s.start().refuse(400, tooLongBody) }, 400, "too_large", "The prompt is longer than model 'guard' can hold.", "", outcome.FilterFailed},
		{"it refuses", "1", func(s *stage) { s.start().refuse(422, "{}") }, 400, "content_filter", "Its engine answered 422.", "", outcome.FilterFailed},
		{"its engine is lost", "1", func(s *stage) { s.start().finish(response.Event{Kind: response.Failed, Reason: reason.TriesUsed}) }, 503, "tries_used", "The engines for model 'guard' failed", "", outcome.FilterFailed},
		{"it has no room in time", "1", func(s *stage) { s.message() }, 504, "queue_deadline_exceeded", "The filter 'guard' reads requests first and could not read this one. No engine for model 'guard' had room", "", outcome.FilterFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			onWay(t, nil, func(t *testing.T, s *stage, r *lanesFull) {
				rec, _, finished := s.ask(plainBody, "Authorization", acme, "X-Guarded", c.guarded)
				c.play(s)
				<-finished
				if h := rec.header; rec.code() != c.status || h.Get("X-Penstock-Reason") != c.why || h.Get("X-Penstock-Route") != c.route || !strings.Contains(rec.body(), c.text) {
					t.Errorf("%d %v: %s", rec.code(), h, rec.body())
				}
				if n := counter(t, s, "penstock_filtered_total", "outcome", string(c.result)); n == 0 {
					t.Errorf("%s is not counted", c.result)
				}
				if n := strings.Count(s.log.String(), "request finished"); n != 1 || len(r.opened[0].Limits) != 0 {
					t.Errorf("%d log lines, the filter was held to %v", n, r.opened[0].Limits)
				}
			})
		})
	}
}

// TestFilterOfAStream: the status is out after 45 s as ever, whichever lane it waits in,
// and the client gets pings until the answer.
func TestFilterOfAStream(t *testing.T) {
	onWay(t, nil, func(t *testing.T, s *stage, _ *lanesFull) {
		rec, _, finished := s.ask(streamBody, "Authorization", acme, "X-Guarded", "1", "X-Penstock-Start-Timeout-Ms", "120000")
		guard := s.start()
		if m := guard.m; m.Stream || m.Path != chatPath || m.MaxTokens != 16 || !strings.HasPrefix(string(m.Body), `{"model":"guard","temperature":0,"max_tokens":16,"messages":[`) {
			t.Errorf("the filter is asked %s at %s", m.Body, m.Path)
		}
		time.Sleep(50 * time.Second)
		guard.says("safe")
		small := s.start()
		time.Sleep(20 * time.Second)
		small.refuse(400, tooLongBody)
		big := s.start()
		big.first(chunk1)
		big.send(response.Chunk, doneEvent)
		big.done("")
		<-finished
		if got, want := rec.body(), ": ping\n\n"+chunk1+doneEvent; rec.code() != 200 || got != want {
			t.Errorf("%d %q, want %q", rec.code(), got, want)
		}
	})
}

// TestGoneOnTheWay: a client that leaves ends the request in the lane where it is.
func TestGoneOnTheWay(t *testing.T) {
	onWay(t, nil, func(t *testing.T, s *stage, _ *lanesFull) {
		rec, gone, finished := s.ask(plainBody, "Authorization", acme, "X-Guarded", "1")
		s.start().says("safe")
		n := s.start()
		gone()
		<-finished
		s.mu.Lock()
		defer s.mu.Unlock()
		if rec.code() != relay.StatusGone || len(s.canceled) != 1 || s.canceled[0] != n.m.ID {
			t.Errorf("status %d, cancelled %v, want %s", rec.code(), s.canceled, n.m.ID)
		}
	})
}

// TestRefusalOnTheWay: a refusal in a later lane whose stream has its status is an error
// event.
func TestRefusalOnTheWay(t *testing.T) {
	onWay(t, map[string]registry.Admission{"vip/q": {Reason: reason.LaneFull, RetryAfter: 5 * time.Second}}, func(t *testing.T, s *stage, _ *lanesFull) {
		rec, _, finished := s.ask(streamBody, "Authorization", "Bearer plain", "X-Guarded", "1", "X-Penstock-Start-Timeout-Ms", "120000")
		guard := s.start()
		time.Sleep(50 * time.Second)
		guard.says("safe")
		<-finished
		if !strings.HasPrefix(rec.body(), `data: {"error":`) || !strings.HasSuffix(rec.body(), doneEvent) || !strings.Contains(rec.body(), `"code":"server_is_overloaded"`) {
			t.Errorf("%d %q, want an error event", rec.code(), rec.body())
		}
	})
}
