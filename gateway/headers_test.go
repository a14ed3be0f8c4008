package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	cfg := DefaultConfig()
	base := limits{deadline: 30 * time.Second, ttft: 2 * time.Second, tpot: 100 * time.Millisecond}
	with := func(change func(*limits)) limits {
		l := base
		change(&l)
		return l
	}
	for _, c := range []struct {
		header, value string
		want          limits
		fault         string
	}{
		{"X-Other", "x", base, ""},
		{"X-Penstock-Start-Timeout-Ms", "1500", with(func(l *limits) { l.deadline, l.deadlineNamed = 1500*time.Millisecond, true }), ""},
		{"X-Penstock-Start-Timeout-Ms", "600000", with(func(l *limits) { l.deadline, l.deadlineNamed = 10*time.Minute, true }), ""},
		{"X-Penstock-Start-Timeout-Ms", "600001", base, `The header x-penstock-start-timeout-ms is "600001". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "0", base, `The header x-penstock-start-timeout-ms is "0". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "NaN", base, `The header x-penstock-start-timeout-ms is "NaN". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "-1", base, `The header x-penstock-start-timeout-ms is "-1". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "Inf", base, `The header x-penstock-start-timeout-ms is "Inf". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "2s", base, `The header x-penstock-start-timeout-ms is "2s". Send milliseconds from 1 to 600000.`},
		{"X-Slo-Ttft-Ms", "800", with(func(l *limits) { l.ttft, l.ttftNamed = 800*time.Millisecond, true }), ""},
		{"X-Slo-Tpot-Ms", "50.5", with(func(l *limits) { l.tpot = 50500 * time.Microsecond }), ""},
		{"X-Slo-Tpot-Ms", "60001", base, `The header x-slo-tpot-ms is "60001". Send milliseconds from 1 to 60000.`},
		{"X-Request-Timeout", "6", with(func(l *limits) { l.deadline = 4800 * time.Millisecond }), ""},
		{"X-Request-Timeout", "6s", with(func(l *limits) { l.deadline = 4800 * time.Millisecond }), ""},
		{"X-Request-Timeout", "6000ms", with(func(l *limits) { l.deadline = 4800 * time.Millisecond }), ""},
		{"X-Request-Timeout", "soon", base, `The header x-request-timeout is "soon". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "-6", base, `The header x-request-timeout is "-6". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "nan", base, `The header x-request-timeout is "nan". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Stainless-Read-Timeout", "600.0", base, ""}, // the SDK's default must not lengthen the wait
		{"X-Stainless-Read-Timeout", "5", with(func(l *limits) { l.deadline = 4 * time.Second }), ""},
		{"X-Stainless-Read-Timeout", "1e300", base, `The header x-stainless-read-timeout is "1e300". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "1000000h", base, `The header x-request-timeout is "1000000h". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "Inf", base, `The header x-request-timeout is "Inf". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Envoy-Expected-Rq-Timeout-Ms", "5000", with(func(l *limits) { l.deadline = 4 * time.Second }), ""},
		{"X-Envoy-Expected-Rq-Timeout-Ms", "-1", base, `The header x-envoy-expected-rq-timeout-ms is "-1". Send milliseconds ("6000"), at most a year.`},
		{"X-Stainless-Timeout", "10", with(func(l *limits) { l.deadline = 8 * time.Second }), ""},
		{"X-Stainless-Timeout", "0", base, ""},
	} {
		t.Run(c.header+" "+c.value, func(t *testing.T) {
			h := http.Header{}
			h.Set(c.header, c.value)
			got, bad := parseLimits(h, base, cfg.MaxDeadline)
			got.patience, got.idle = 0, false // only their effect
			if bad != "" || c.fault != "" {
				if bad != c.fault {
					t.Errorf("fault %q, want %q", bad, c.fault)
				}
				return
			}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestDoorLimit(t *testing.T) {
	for _, c := range []struct {
		name       string
		l          limits
		firstToken time.Duration
		want       time.Duration
	}{
		{"what the engine leaves", limits{deadline: 30 * time.Second, ttft: 2 * time.Second}, 500 * time.Millisecond, 1500 * time.Millisecond},
		{"not below 250 ms", limits{deadline: 30 * time.Second, ttft: 2 * time.Second}, 5 * time.Second, 250 * time.Millisecond},
		{"a named start timeout", limits{deadline: 20 * time.Second, deadlineNamed: true, ttft: 2 * time.Second}, 5 * time.Second, 20 * time.Second},
		{"an impatient SDK", limits{deadline: time.Second, ttft: 2 * time.Second}, 0, time.Second},
	} {
		if got := c.l.door(c.firstToken); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestLabels(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc-1": "abc-1", "a b\r\nc": "abc", "é": "", `q"\`: "q", strings.Repeat("x", 200): strings.Repeat("x", 128),
	} {
		if got := label(in); got != want {
			t.Errorf("label(%q) = %q, want %q", in, got, want)
		}
	}
	good := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for in, want := range map[string]string{good: good, "": "", "01" + good[2:]: "", good + "x": "", strings.ToUpper(good): "", strings.Replace(good, "c-b", "cxb", 1): ""} {
		if got := traceparent(in); got != want {
			t.Errorf("traceparent(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{"6", "6s", "6000ms", "-1", "NaN", "1e308", "0x1p-2", "ms", "s", ""} {
		f.Add(seed)
	}
	cfg := DefaultConfig()
	own := limits{deadline: cfg.Deadline, ttft: cfg.SLOTTFT, tpot: cfg.SLOTPOT}
	f.Fuzz(func(t *testing.T, value string) {
		for _, name := range []string{"X-Penstock-Start-Timeout-Ms", "X-Slo-Ttft-Ms", "X-Slo-Tpot-Ms", "X-Request-Timeout", "X-Stainless-Timeout", "X-Envoy-Expected-Rq-Timeout-Ms"} {
			l, bad := parseLimits(http.Header{name: {value}}, own, cfg.MaxDeadline)
			if bad != "" {
				continue
			}
			if l.deadline <= 0 || l.deadline > cfg.MaxDeadline || l.ttft <= 0 || l.tpot <= 0 {
				t.Errorf("%s: %q gave %+v", name, value, l)
			}
		}
		if got := label(value); len(got) > maxLabel || strings.ContainsAny(got, "\r\n \"") {
			t.Errorf("label(%q) = %q", value, got)
		}
		if got := traceparent(value); got != "" && len(got) != 55 {
			t.Errorf("traceparent(%q) = %q", value, got)
		}
	})
}
