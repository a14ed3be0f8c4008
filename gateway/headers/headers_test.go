package headers

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// longest is the longest start deadline a client may name.
const longest = 10 * time.Minute

func TestLimits(t *testing.T) {
	base := Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond}
	with := func(change func(*Limits)) Limits {
		l := base
		change(&l)
		return l
	}
	for _, c := range []struct {
		header, value string
		want          Limits
		fault         string
	}{
		{"X-Other", "x", base, ""},
		{"X-Penstock-Start-Timeout-Ms", "1500", with(func(l *Limits) { l.Deadline, l.DeadlineNamed = 1500*time.Millisecond, true }), ""},
		{"X-Penstock-Start-Timeout-Ms", "600000", with(func(l *Limits) { l.Deadline, l.DeadlineNamed = 10*time.Minute, true }), ""},
		{"X-Penstock-Start-Timeout-Ms", "600001", base, `The header x-penstock-start-timeout-ms is "600001". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "0", base, `The header x-penstock-start-timeout-ms is "0". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "NaN", base, `The header x-penstock-start-timeout-ms is "NaN". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "-1", base, `The header x-penstock-start-timeout-ms is "-1". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "Inf", base, `The header x-penstock-start-timeout-ms is "Inf". Send milliseconds from 1 to 600000.`},
		{"X-Penstock-Start-Timeout-Ms", "2s", base, `The header x-penstock-start-timeout-ms is "2s". Send milliseconds from 1 to 600000.`},
		{"X-Slo-Ttft-Ms", "800", with(func(l *Limits) { l.TTFT, l.TTFTNamed = 800*time.Millisecond, true }), ""},
		{"X-Slo-Tpot-Ms", "50.5", with(func(l *Limits) { l.TPOT = 50500 * time.Microsecond }), ""},
		{"X-Slo-Tpot-Ms", "60001", base, `The header x-slo-tpot-ms is "60001". Send milliseconds from 1 to 60000.`},
		{"X-Request-Timeout", "6", with(func(l *Limits) { l.Deadline = 4800 * time.Millisecond }), ""},
		{"X-Request-Timeout", "6s", with(func(l *Limits) { l.Deadline = 4800 * time.Millisecond }), ""},
		{"X-Request-Timeout", "6000ms", with(func(l *Limits) { l.Deadline = 4800 * time.Millisecond }), ""},
		{"X-Request-Timeout", "soon", base, `The header x-request-timeout is "soon". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "-6", base, `The header x-request-timeout is "-6". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "nan", base, `The header x-request-timeout is "nan". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Stainless-Read-Timeout", "600.0", base, ""}, // the SDK's default must not lengthen the wait
		{"X-Stainless-Read-Timeout", "5", with(func(l *Limits) { l.Deadline = 4 * time.Second }), ""},
		{"X-Stainless-Read-Timeout", "1e300", base, `The header x-stainless-read-timeout is "1e300". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "1000000h", base, `The header x-request-timeout is "1000000h". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Request-Timeout", "Inf", base, `The header x-request-timeout is "Inf". Send seconds ("6"), or a number with a unit ("6s", "6000ms"), at most a year.`},
		{"X-Envoy-Expected-Rq-Timeout-Ms", "5000", with(func(l *Limits) { l.Deadline = 4 * time.Second }), ""},
		{"X-Envoy-Expected-Rq-Timeout-Ms", "-1", base, `The header x-envoy-expected-rq-timeout-ms is "-1". Send milliseconds ("6000"), at most a year.`},
		{"X-Stainless-Timeout", "10", with(func(l *Limits) { l.Deadline = 8 * time.Second }), ""},
		{"X-Stainless-Timeout", "0", base, ""},
	} {
		t.Run(c.header+" "+c.value, func(t *testing.T) {
			h := http.Header{}
			h.Set(c.header, c.value)
			got, bad := Parse(h, base, longest)
			got.Patience, got.Idle = 0, false // only their effect
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
		l          Limits
		firstToken time.Duration
		want       time.Duration
	}{
		{"what the engine leaves", Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second}, 500 * time.Millisecond, 1500 * time.Millisecond},
		{"not below 250 ms", Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second}, 5 * time.Second, 250 * time.Millisecond},
		{"a named start timeout", Limits{Deadline: 20 * time.Second, DeadlineNamed: true, TTFT: 2 * time.Second}, 5 * time.Second, 20 * time.Second},
		{"an impatient SDK", Limits{Deadline: time.Second, TTFT: 2 * time.Second}, 0, time.Second},
	} {
		if got := c.l.Door(c.firstToken); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestLabels(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc-1": "abc-1", "a b\r\nc": "abc", "é": "", `q"\`: "q", strings.Repeat("x", 200): strings.Repeat("x", 128),
	} {
		if got := Label(in); got != want {
			t.Errorf("Label(%q) = %q, want %q", in, got, want)
		}
	}
	good := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for in, want := range map[string]string{good: good, "": "", "01" + good[2:]: "", good + "x": "", strings.ToUpper(good): "", strings.Replace(good, "c-b", "cxb", 1): ""} {
		if got := Traceparent(in); got != want {
			t.Errorf("Traceparent(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{"6", "6s", "6000ms", "-1", "NaN", "1e308", "0x1p-2", "ms", "s", ""} {
		f.Add(seed)
	}
	own := Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second, TPOT: 100 * time.Millisecond}
	f.Fuzz(func(t *testing.T, value string) {
		for _, name := range []string{"X-Penstock-Start-Timeout-Ms", "X-Slo-Ttft-Ms", "X-Slo-Tpot-Ms", "X-Request-Timeout", "X-Stainless-Timeout", "X-Envoy-Expected-Rq-Timeout-Ms"} {
			l, bad := Parse(http.Header{name: {value}}, own, longest)
			if bad != "" {
				continue
			}
			if l.Deadline <= 0 || l.Deadline > longest || l.TTFT <= 0 || l.TPOT <= 0 {
				t.Errorf("%s: %q gave %+v", name, value, l)
			}
		}
		if got := Label(value); len(got) > maxLabel || strings.ContainsAny(got, "\r\n \"") {
			t.Errorf("Label(%q) = %q", value, got)
		}
		if got := Traceparent(value); got != "" && len(got) != 55 {
			t.Errorf("Traceparent(%q) = %q", value, got)
		}
	})
}

func TestRelieve(t *testing.T) {
	base := Limits{Deadline: 30 * time.Second, TTFT: 2 * time.Second}
	for _, c := range []struct {
		name   string
		change func(*Limits)
		want   Limits
	}{
		{"four times", func(*Limits) {}, Limits{Deadline: 2 * time.Minute, TTFT: 2 * time.Minute, Relieved: true}},
		{"at most the longest", func(l *Limits) { l.Deadline = 5 * time.Minute }, Limits{Deadline: 10 * time.Minute, TTFT: 10 * time.Minute, Relieved: true}},
		{"at most what an SDK waits", func(l *Limits) { l.Patience = 40 * time.Second }, Limits{Deadline: 40 * time.Second, TTFT: 40 * time.Second, Patience: 40 * time.Second, Relieved: true}},
		{"a named start timeout stays", func(l *Limits) { l.DeadlineNamed = true }, Limits{Deadline: 30 * time.Second, DeadlineNamed: true, TTFT: 2 * time.Second}},
		{"a named slo stays", func(l *Limits) { l.TTFTNamed = true }, Limits{Deadline: 2 * time.Minute, TTFT: 2 * time.Second, TTFTNamed: true, Relieved: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := base
			c.change(&got)
			if got.Relieve(10 * time.Minute); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
