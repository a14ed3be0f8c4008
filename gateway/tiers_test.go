package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/fleet"
	"penstock/reason"
	"penstock/response"
)

// tiered sets three tiers, of which batch has relief when relief says so.
func tiered(relief *uint16) func(*Config, *Deps) {
	return func(c *Config, d *Deps) {
		c.Tiers = []Tier{{Name: "vip", SLOTTFT: time.Second}, {Name: "normal"}, {Name: "batch", SLOTTFT: time.Minute, SLOTPOT: time.Second}}
		d.Rows = func() []fleet.Row {
			return []fleet.Row{{Node: "n1", Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, Relief: *relief, At: time.Now()}}
		}
	}
}

func TestTierOfRequest(t *testing.T) {
	cfg := DefaultConfig()
	tiered(new(uint16))(&cfg, &Deps{})
	named := cfg
	named.DefaultTier = "normal"
	none := DefaultConfig()
	for _, c := range []struct {
		name        string
		cfg         *Config
		header      string
		tier, wrong string
		limits      limits
	}{
		{"none are configured: the header is not looked at", &none, "vip", "default", "", limits{deadline: 30 * time.Second, ttft: 2 * time.Second, tpot: 100 * time.Millisecond}},
		{"its limits", &cfg, "vip", "vip", "", limits{deadline: 30 * time.Second, ttft: time.Second, tpot: 100 * time.Millisecond}},
		{"no limits of its own", &cfg, " normal ", "normal", "", limits{deadline: 30 * time.Second, ttft: 2 * time.Second, tpot: 100 * time.Millisecond}},
		{"the deadline is not below slo_ttft", &cfg, "batch", "batch", "", limits{deadline: time.Minute, ttft: time.Minute, tpot: time.Second}},
		{"none named: the last", &cfg, "", "batch", "", limits{deadline: time.Minute, ttft: time.Minute, tpot: time.Second}},
		{"none named: the default", &named, "", "normal", "", limits{deadline: 30 * time.Second, ttft: 2 * time.Second, tpot: 100 * time.Millisecond}},
		{"not known", &cfg, "gold", "", `The header x-penstock-tier is "gold". Send one of: vip, normal, batch.`, limits{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			if c.header != "" {
				h.Set("X-Penstock-Tier", c.header)
			}
			place, tier, wrong := c.cfg.tierOf(h)
			if tier != c.tier || wrong != c.wrong {
				t.Fatalf("tier %q, %q; want %q, %q", tier, wrong, c.tier, c.wrong)
			}
			if wrong != "" {
				return
			}
			if got, _ := parseLimits(h, c.cfg, place); got != c.limits {
				t.Errorf("limits %+v, want %+v", got, c.limits)
			}
		})
	}
}

func TestTiersAreValid(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"the name of tier 1 is empty":                     func(c *Config) { c.Tiers = []Tier{{}} },
		"slo_ttft of tier":                                func(c *Config) { c.Tiers = []Tier{{Name: "a", SLOTTFT: time.Hour}} },
		"slo_tpot of tier":                                func(c *Config) { c.Tiers = []Tier{{Name: "a", SLOTPOT: time.Hour}} },
		`default_tier is "b": set it to one of a`:         func(c *Config) { c.Tiers, c.DefaultTier = []Tier{{Name: "a"}}, "b" },
		`default_tier is "vip": set it to one of default`: func(c *Config) { c.DefaultTier = "vip" },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestRelieve(t *testing.T) {
	base := limits{deadline: 30 * time.Second, ttft: 2 * time.Second}
	for _, c := range []struct {
		name   string
		change func(*limits)
		want   limits
	}{
		{"four times", func(*limits) {}, limits{deadline: 2 * time.Minute, ttft: 2 * time.Minute, relieved: true}},
		{"at most the longest", func(l *limits) { l.deadline = 5 * time.Minute }, limits{deadline: 10 * time.Minute, ttft: 10 * time.Minute, relieved: true}},
		{"at most what an SDK waits", func(l *limits) { l.patience = 40 * time.Second }, limits{deadline: 40 * time.Second, ttft: 40 * time.Second, patience: 40 * time.Second, relieved: true}},
		{"a named start timeout stays", func(l *limits) { l.deadlineNamed = true }, limits{deadline: 30 * time.Second, deadlineNamed: true, ttft: 2 * time.Second}},
		{"a named slo stays", func(l *limits) { l.ttftNamed = true }, limits{deadline: 2 * time.Minute, ttft: 2 * time.Second, ttftNamed: true, relieved: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := base
			c.change(&got)
			if got.relieve(10 * time.Minute); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestTierTravels: the tier is that of the lane, its limits and its relief those of
// the message, its name the label of its metrics, and who waited in vain is told.
func TestTierTravels(t *testing.T) {
	var relief uint16
	s := newStage(t, tiered(&relief)).serve()
	resp := make(chan *http.Response, 1)
	ask := func(tier string) {
		go func() { resp <- s.post(plainBody, "X-Penstock-Tier", tier) }()
	}
	ask("vip")
	n := s.start()
	if n.m.Lane.Tier != "vip" || n.m.SLOTTFT != time.Second || n.m.Deadline.Sub(n.m.Opened) != 30*time.Second {
		t.Errorf("message %+v, want tier vip and its limits", n.m)
	}
	n.done(`{}`)
	(<-resp).Body.Close()
	relief = 0b100
	ask("batch")
	n = s.start()
	if n.m.Lane.Tier != "batch" || n.m.Deadline.Sub(n.m.Opened) != 4*time.Minute || n.m.SLOTTFT != 4*time.Minute {
		t.Errorf("under relief: lane %v, deadline %v, slo %v; want batch, 4m, 4m", n.m.Lane, n.m.Deadline.Sub(n.m.Opened), n.m.SLOTTFT)
	}
	n.finish(response.Event{Kind: response.Dropped, Reason: reason.DeadlinePassed})
	r := <-resp
	if text, _, _ := errorOf(t, readAll(t, r.Body)); r.StatusCode != 504 || !strings.HasPrefix(text, "The service is busy: 0 requests ahead when this one came") || !strings.Contains(text, "within 240 s") {
		t.Errorf("%d %q, want 504 and how busy it was", r.StatusCode, text)
	}
	if r := s.post(plainBody, "X-Penstock-Tier", "gold"); r.StatusCode != 400 {
		t.Errorf("an unknown tier: status %d, want 400", r.StatusCode)
	}
	for _, tier := range []string{"vip", "batch"} {
		outcome := map[string]string{"vip": "ok", "batch": "expired"}[tier]
		eventually(t, "the request is counted", func() bool {
			return counter(t, s, "penstock_requests_total", "tier", tier, "model", "q", "outcome", outcome) == 1
		})
	}
	if got := counter(t, s, "penstock_requests_total", "tier", "normal", "model", "q", "outcome", "ok"); got != 0 {
		t.Errorf("tier normal: %v, want the series at 0", got)
	}
}
