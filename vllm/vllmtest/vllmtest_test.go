package vllmtest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type answer struct {
	Choices []struct{ Text string }
	Usage   struct {
		Output int `json:"completion_tokens"`
	}
}

func decode(t *testing.T, e *Engine, body string) answer {
	t.Helper()
	resp, err := transport.RoundTrip(newRequest(t, http.MethodPost, e.URL()+completePath, body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a answer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	return a
}

func statusOf(t *testing.T, e *Engine, path string) int {
	t.Helper()
	resp, err := transport.RoundTrip(newRequest(t, http.MethodGet, e.URL()+path, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

func TestFaultsOfAnswers(t *testing.T) {
	frame := func(code string) *regexp.Regexp {
		return regexp.MustCompile(`^data: \{"error": \{.*"code": ` + code + `\}\}\n\ndata: \[DONE\]\n\n$`)
	}
	events := `(data: \{"id".*\n\n){3}`
	for _, c := range []struct {
		name   string
		fault  Fault
		stream bool
		status int
		body   *regexp.Regexp
		cut    bool
	}{
		{"busy", Busy, true, 503, regexp.MustCompile(`^{"error":{"message":"The engine is currently busy.*"code":503}}$`), false},
		{"busy late", BusyLate, true, 200, frame("503"), false},
		{"busy late, plain", BusyLate, false, 503, regexp.MustCompile(`"code":503`), false},
		{"error first", ErrorFirst, true, 200, frame("500"), false},
		{"error first, plain", ErrorFirst, false, 500, regexp.MustCompile(`"code":500`), false},
		{"error mid", ErrorMid, true, 200, regexp.MustCompile(`^` + events + strings.TrimPrefix(frame("500").String(), "^")), false},
		{"error mid, plain", ErrorMid, false, 200, regexp.MustCompile(`"completion_tokens":12`), false},
		{"cut", Cut, true, 200, regexp.MustCompile(`^` + events + `$`), true},
		{"cut, plain", Cut, false, 200, regexp.MustCompile(`^{"id".*[^}]$`), true},
		{"draining", Draining, true, 500, regexp.MustCompile(`cannot schedule new futures after shutdown`), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Start(t)
			e.Break(c.fault)
			body := textHello + "}"
			if c.stream {
				body = textHello + withUsage
			}
			resp, err := transport.RoundTrip(newRequest(t, http.MethodPost, e.URL()+completePath, body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if (err != nil) != c.cut || resp.StatusCode != c.status || !c.body.Match(got) {
				t.Errorf("status %d, end %v, body:\n%s\nwant status %d, cut %v, body like %s", resp.StatusCode, err, got, c.status, c.cut, c.body)
			}
			e.WaitFor("the engine to be empty", func() bool { return e.InFlight() == 0 })
			if e.Requests() != 1 {
				t.Errorf("%d requests seen, want 1", e.Requests())
			}
			e.Mend(c.fault)
			decode(t, e, textHello+"}")
		})
	}
}

func TestHungEngine(t *testing.T) {
	e := Start(t)
	stop := occupy(t, e)
	e.Break(Hung)
	frozen := e.Stats()
	stop()
	if s := statusOf(t, e, "/health"); s != http.StatusOK {
		t.Errorf("/health is %d, want 200", s)
	}
	// A whole stream at another, sound engine is time enough for steps and aborts.
	decode(t, Start(t), textHello+"}")
	if got := e.Stats(); got != frozen {
		t.Errorf("gauges moved while hung: %+v, were %+v", got, frozen)
	}
	e.Mend(Hung)
	e.WaitFor("the abort", func() bool { return e.Aborts() == 1 && e.Running() == 0 })
	if e.Wasted() == 0 {
		t.Error("an aborted request wasted no token")
	}
}

func TestStopAndRestart(t *testing.T) {
	e := Start(t)
	decode(t, e, textHello+"}")
	url := e.URL()
	e.Stop()
	if _, err := transport.RoundTrip(newRequest(t, http.MethodGet, url+"/health", "")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a stopped engine answers %v, want connection refused", err)
	}
	e.Restart()
	if e.URL() != url || e.Stats().GenerationTokens != 0 || e.Requests() != 1 {
		t.Errorf("after a restart: %s, %+v, %d requests; want %s, counters 0, 1 request", e.URL(), e.Stats(), e.Requests(), url)
	}
	decode(t, e, textHello+"}")
}

func TestDisconnectAborts(t *testing.T) {
	e := Start(t, WithStep(5*time.Millisecond))
	occupy(t, e)()
	e.WaitFor("the abort", func() bool { return e.Aborts() == 1 && e.Running() == 0 && e.Stats().KV == 0 })
}

func fetch(t *testing.T, e *Engine, path string) (string, string, error) {
	t.Helper()
	resp, err := transport.RoundTrip(newRequest(t, http.MethodGet, e.URL()+path, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), resp.Header.Get("Content-Type"), err
}

func TestFaultsOfThePage(t *testing.T) {
	const kv = `vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} `
	for _, c := range []struct {
		name  string
		fault Fault
		path  string
		want  string // the page must match
		cut   bool
	}{
		{"error", MetricsError, "/metrics", `^Internal Server Error\n$`, false},
		{"empty", MetricsEmpty, "/metrics", `^$`, false},
		{"garbage", MetricsGarbage, "/metrics", `^<html>`, false},
		{"truncated", MetricsTruncated, "/metrics", `[^\n]$`, false},
		{"cut", MetricsCut, "/metrics", ``, true},
		{"NaN", KVNaN, "/metrics", regexp.QuoteMeta(kv) + `NaN\n`, false},
		{"Inf", KVInf, "/metrics", regexp.QuoteMeta(kv) + `\+Inf\n`, false},
		{"negative", KVNegative, "/metrics", regexp.QuoteMeta(kv) + `-0\.25\n`, false},
		{"over", KVOver, "/metrics", regexp.QuoteMeta(kv) + `1\.75\n`, false},
		{"missing", KVMissing, "/metrics/?name[]=vllm:kv_cache_usage_perc", `^$`, false},
		{"load missing", LoadMissing, "/metrics/?name[]=vllm:num_requests_running&name[]=vllm:num_requests_waiting", `^$`, false},
		{"filter ignored", FilterIgnored, "/metrics/?name[]=vllm:kv_cache_usage_perc", `vllm:num_requests_running\{`, false},
		{"filter empty", FilterEmpty, "/metrics/?name[]=vllm:kv_cache_usage_perc", `^$`, false},
		{"filter empty, full page", FilterEmpty, "/metrics", `vllm:num_requests_running\{`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Start(t)
			e.Break(c.fault)
			page, _, err := fetch(t, e, c.path)
			if !regexp.MustCompile(c.want).MatchString(page) || (err != nil) != c.cut {
				t.Errorf("end %v, page:\n%s\nwant a match of %s, cut %v", err, page, c.want, c.cut)
			}
		})
	}
}

func TestDialects(t *testing.T) {
	for _, c := range []struct {
		name    string
		dialect Dialect
		has     []string // regexps, of the live page and of Page alike
		hasNot  []string
	}{
		{"0.32", V032, []string{`(?m)^vllm:kv_cache_usage_perc\{engine="0",model_name="tiny"\} [01]\.0$`, `_created`}, nil},
		{"0.14", V014, []string{`vllm:kv_cache_usage_perc`}, []string{`waiting_by_reason`, `admission_rejections`, `kv_cache_size_tokens`}},
		{"two servers", TwoServers, []string{`vllm:kv_cache_usage_perc`}, []string{`_created`, `pid=`}},
		{"data parallel", DataParallel, []string{`vllm:kv_cache_usage_perc\{engine="0"`, `vllm:kv_cache_usage_perc\{engine="1"`, `cache_config_info\{.*engine="1"`}, nil},
		{"old name", OldName, []string{`(?m)^vllm:gpu_cache_usage_perc\{`}, []string{`kv_cache_usage_perc`}},
		{"no engine label", NoEngineLabel, []string{`vllm:num_requests_running\{model_name="tiny"\}`}, []string{`engine="0"`}},
		{"per pid", PerPID, []string{`pid="41"\} 0\.0\nvllm:kv_cache_usage_perc\{engine="0",model_name="tiny",pid="42"\} [01]\.0\n`}, nil},
		{"OpenMetrics", OpenMetrics, []string{`(?m)^# TYPE vllm:num_preemptions counter$`, `(?m)^vllm:num_preemptions_total\{.*\} \d+$`, `\n# EOF\n$`}, []string{`_created`, `iteration_tokens`, `cache_config_info`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Start(t, WithDialect(c.dialect))
			live, kind, err := fetch(t, e, "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			static, want := Page(c.dialect)
			if kind != want {
				t.Errorf("live page is %q, want %q", kind, want)
			}
			for _, page := range []string{live, string(static)} {
				for _, re := range c.has {
					if !regexp.MustCompile(re).MatchString(page) {
						t.Errorf("page has no %s:\n%.3000s", re, page)
					}
				}
				for _, re := range c.hasNot {
					if m := regexp.MustCompile(".*" + re + ".*").FindString(page); m != "" {
						t.Errorf("page has %s: %s", re, m)
					}
				}
			}
		})
	}
}
