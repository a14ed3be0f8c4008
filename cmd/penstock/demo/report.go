package demo

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"penstock/cmd/penstock/show"
	"penstock/load"
)

// Report is what the demo with tenants found. Times are in seconds.
type Report struct {
	APIVersion string       `json:"apiVersion"`
	Capacity   float64      `json:"capacity_requests_per_second"` // of one engine
	Overload   float64      `json:"overload"`
	Span       float64      `json:"span_seconds"` // that is counted
	Seed       uint64       `json:"seed"`
	Quota      int64        `json:"abuser_quota_tokens_per_minute"`
	Sides      []sideReport `json:"sides"` // direct, penstock, penstock at calmLoad
	Checks     []Check      `json:"checks"`
}

type sideReport struct {
	Name        string         `json:"name"`
	Load        float64        `json:"load"`                       // times the capacity
	Tokens      float64        `json:"answered_tokens_per_second"` // prompt and output of the whole answers that ended in the span
	GoodTokens  float64        `json:"good_tokens_per_second"`
	GoodRate    float64        `json:"good_requests_per_second"`
	Preemptions uint64         `json:"preemptions"`
	Wasted      float64        `json:"wasted_share"` // of the tokens computed: aborted, or computed again
	Tenants     []tenantReport `json:"tenants"`
}

type tenantReport struct {
	Tenant   string         `json:"tenant"`
	Requests int            `json:"requests"` // counted
	Good     int            `json:"good"`
	TTFTp50  float64        `json:"ttft_p50_seconds"`
	TTFTp99  float64        `json:"ttft_p99_seconds"`
	Without  map[string]int `json:"attempts_without_a_token"` // by reason
	Tokens   int            `json:"tokens"`                   // prompt and output of all it was answered, not only of what is counted
	Quota    float64        `json:"quota_used,omitempty"`     // of the tokens its quota allows until its last answer; direct: as if it had one
}

// Check is one figure and what it should be.
type Check struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Least float64 `json:"least,omitempty"` // 0 = no lower bound
	Most  float64 `json:"most,omitempty"`  // 0 = no upper bound
	OK    bool    `json:"ok"`
}

func newReport(cfg Config, most float64, perMinute int64, sides []*side) *Report {
	r := &Report{APIVersion: "penstock/v1", Capacity: most, Overload: cfg.Overload, Span: cfg.Span.Seconds(), Seed: cfg.Seed, Quota: perMinute}
	for _, s := range sides {
		r.Sides = append(r.Sides, s.report(cfg, perMinute))
	}
	direct, behind, calm := &r.Sides[0], &r.Sides[1], &r.Sides[2]
	abuser, vip, one, two := 0, 1, 2, 3 // of demoTenants
	r.atMost("VIP's TTFT p99: penstock under overload over the same at 0.8x load", ratio(behind.Tenants[vip].TTFTp99, calm.Tenants[vip].TTFTp99), 1.3)
	r.atMost("VIP's TTFT p99: penstock over direct", ratio(behind.Tenants[vip].TTFTp99, direct.Tenants[vip].TTFTp99), 0.4)
	r.atLeast("VIP's good requests, of those it sent", behind.Tenants[vip].share(), 0.95)
	r.atLeast("normal tenants' good requests: the lesser over the greater", equality(behind.Tenants[one], behind.Tenants[two]), 0.9)
	r.atMost("abuser: tokens it got of those its quota allows", behind.Tenants[abuser].Quota, 1.01)
	r.atLeast("tokens of good requests per second: penstock over direct (at most 1000)", ratio(behind.GoodTokens, direct.GoodTokens), 1.4)
	return r
}

func (r *Report) atMost(what string, value, most float64) {
	r.Checks = append(r.Checks, Check{What: what, Value: value, Most: most, OK: value <= most})
}

func (r *Report) atLeast(what string, value, least float64) {
	r.Checks = append(r.Checks, Check{What: what, Value: value, Least: least, OK: value >= least})
}

// ratio is a over b, at most 1000, so that JSON can say it.
func ratio(a, b float64) float64 { return min(a/max(b, 1e-9), 1000) }

func (t tenantReport) share() float64 { return ratio(float64(t.Good), float64(t.Requests)) }

func equality(a, b tenantReport) float64 {
	return ratio(min(a.share(), b.share()), max(a.share(), b.share()))
}

func (s *side) report(cfg Config, perMinute int64) sideReport {
	warm, _ := cfg.window()
	out := sideReport{
		Name: s.name, Load: s.load, Preemptions: s.stats.Preemptions,
		Wasted: float64(s.stats.TokensAborted+s.stats.TokensRecomputed) / math.Max(1, float64(s.stats.TokensComputed)),
	}
	for i, t := range senders {
		sum := load.Between(s.outcomes[i], warm, warm+cfg.Span)
		out.GoodTokens += sum.TokenGoodput
		out.GoodRate += sum.Goodput
		row := tenantReport{
			Tenant: t.name, Requests: sum.Requests, Good: sum.Good,
			TTFTp50: sum.TTFTp50.Seconds(), TTFTp99: sum.TTFTp99.Seconds(), Without: sum.Refused,
		}
		var last time.Duration // its last answer
		for k := range s.outcomes[i] {
			o := &s.outcomes[i][k]
			if o.End >= warm && o.End < warm+cfg.Span && len(o.Attempts) > 0 && o.Last().Complete {
				out.Tokens += float64(o.Arrival.Prompt+o.Last().Tokens) / cfg.Span.Seconds()
			}
			for _, a := range o.Attempts {
				if a.Tokens > 0 {
					row.Tokens += o.Arrival.Prompt + a.Tokens
					last = max(last, o.End)
				}
			}
		}
		if t.name == "abuser" {
			row.Quota = ratio(float64(row.Tokens), allowed(perMinute, last))
		}
		out.Tenants = append(out.Tenants, row)
	}
	return out
}

// Write writes the report as output, text or json, has it.
func (r *Report) Write(w io.Writer, output string) error {
	if output == "json" {
		return show.JSON(w, r)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(table, format+"\n", args...) }
	line("\t%s at %gx\t%s at %gx\tpenstock at %gx", r.Sides[0].Name, r.Sides[0].Load, r.Sides[1].Name, r.Sides[1].Load, r.Sides[2].Load)
	each := func(name string, value func(s *sideReport) string) {
		line("%s\t%s\t%s\t%s", name, value(&r.Sides[0]), value(&r.Sides[1]), value(&r.Sides[2]))
	}
	for i, t := range senders {
		each(t.name+": good requests", func(s *sideReport) string {
			return fmt.Sprintf("%.0f %% of %d", 100*s.Tenants[i].share(), s.Tenants[i].Requests)
		})
		each("  TTFT p50 / p99", func(s *sideReport) string {
			return fmt.Sprintf("%.2f s / %.2f s", s.Tenants[i].TTFTp50, s.Tenants[i].TTFTp99)
		})
		each("  attempts without a token", func(s *sideReport) string { return reasons(s.Tenants[i].Without) })
	}
	each("all: good requests", func(s *sideReport) string { return fmt.Sprintf("%.1f/s", s.GoodRate) })
	each("  tokens of whole answers", func(s *sideReport) string { return fmt.Sprintf("%.0f/s", s.Tokens) })
	each("  tokens of good requests", func(s *sideReport) string { return fmt.Sprintf("%.0f/s", s.GoodTokens) })
	each("  preemptions", func(s *sideReport) string { return fmt.Sprint(s.Preemptions) })
	each("  wasted tokens", func(s *sideReport) string { return fmt.Sprintf("%.0f %%", 100*s.Wasted) })
	each("abuser's tokens, of its quota", func(s *sideReport) string { return fmt.Sprintf("%.2f", s.Tenants[0].Quota) })
	line("")
	for _, c := range r.Checks {
		verdict := "ok"
		if !c.OK {
			verdict = "missed"
		}
		bound := fmt.Sprintf("at most %g", c.Most)
		if c.Least > 0 {
			bound = fmt.Sprintf("at least %g", c.Least)
		}
		line("%s\t%.2f\t%s\t%s", c.What, c.Value, bound, verdict)
	}
	return table.Flush()
}
