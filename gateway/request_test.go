package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	type want struct {
		Model                                                string
		Stream                                               bool
		MaxTokens, Sequences, TextBytes, Images, TokenNumber int
	}
	for _, c := range []struct {
		name, kind, body string
		want             want
	}{
		{"smallest", "chat", `{"model":"q"}`, want{Model: "q", Sequences: 1}},
		{"chat", "chat", `{"model":"q","stream":true,"max_tokens":9,"messages":[{"role":"system","content":"ab"},{"role":"user","content":"cde"}]}`, want{"q", true, 9, 1, 5, 0, 0}},
		{"new name of max_tokens wins", "chat", `{"model":"q","max_tokens":9,"max_completion_tokens":5}`, want{Model: "q", MaxTokens: 5, Sequences: 1}},
		{"parts", "chat", `{"model":"q","messages":[{"role":"user","content":[{"type":"text","text":"abc"},{"type":"image_url","image_url":{"url":"data:AAAAAAAA"}},{"type":"input_audio","input_audio":{}}]}]}`, want{"q", false, 0, 1, 3, 2, 0}},
		{"tools and calls", "chat", `{"model":"q","tools":[{"a":1}],"messages":[{"role":"assistant","content":null,"tool_calls":[1]}]}`, want{"q", false, 0, 1, 9 + 3, 0, 0}},
		{"n and best_of", "completion", `{"model":"q","prompt":["a","bc"],"n":2,"best_of":3}`, want{"q", false, 0, 6, 3, 0, 0}},
		{"token ids", "completion", `{"model":"q","prompt":[1,2,3]}`, want{"q", false, 0, 1, 0, 0, 3}},
		{"lists of token ids", "completion", `{"model":"q","prompt":[[1,2],[3]]}`, want{"q", false, 0, 2, 0, 0, 3}},
		{"embedding", "embedding", `{"model":"q","input":["a","b"],"stream":true}`, want{"q", false, 0, 2, 2, 0, 0}},
		{"nulls are absent", "chat", `{"model":"q","stream":null,"max_tokens":null,"n":null}`, want{Model: "q", Sequences: 1}},
		{"escapes", "completion", `{"model":"q","prompt":"a\nb\u4f60\"c"}`, want{"q", false, 0, 1, 8, 0, 0}},
		{"odd numbers", "chat", `{"model":"q","n":-3,"max_tokens":0}`, want{Model: "q", Sequences: 1}},
		{"huge numbers", "chat", `{"model":"q","n":1e300,"max_tokens":1e300}`, want{Model: "q", Sequences: maxSequences}},
		{"other case is another key", "chat", `{"model":"q","Stream":true}`, want{Model: "q", Sequences: 1}},
		{"escaped name", "chat", `{"mod\u0065l":"q"}`, want{Model: "q", Sequences: 1}},
		{"twice where it does not matter", "chat", `{"model":"q","top_p":1,"top_p":2,"metadata":{"model":1,"model":2}}`, want{Model: "q", Sequences: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, bad := parse("/", c.kind, []byte(c.body))
			if bad != nil {
				t.Fatalf("fault %q", bad.message)
			}
			got := want{p.model, p.stream, p.maxTokens, p.sequences, p.textBytes, p.images, p.tokenIDs}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseFaults(t *testing.T) {
	for _, c := range []struct{ body, param string }{
		{``, ""},
		{`[]`, ""},
		{`{"model":"q"`, ""},
		{`{"model":"q"} x`, ""},
		{`{"model":"q","messages":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, ""},
		{strings.Repeat("[", 1<<20), ""},
		{`{"model":""}`, "model"},
		{`{"model":7}`, "model"},
		{`{"MODEL":"q"}`, "model"},
		{`{"model":"` + strings.Repeat("x", 257) + `"}`, "model"},
		{`{"model":"a","model":"b"}`, "model"},
		{`{"model":"a","model":null}`, "model"},
		{`{"model":"a","mod\u0065l":"b"}`, "model"},
		{`{"model":"a","MAX_TO\u212aENS":1,"max_tokens":1}`, "max_tokens"}, // the Kelvin sign folds to k
		{`{"model":"a","stream":"true"}`, "stream"},
		{`{"model":"a","stream":1}`, "stream"},
		{`{"model":"a","n":"2"}`, "n"},
		{`{"model":"a","stream_options":{},"Stream_Options":{}}`, "stream_options"},
	} {
		name := c.body[:min(len(c.body), 40)]
		if p, bad := parse("/", "chat", []byte(c.body)); bad == nil || bad.param != c.param {
			t.Errorf("%s: fault %+v, request %+v, want a fault of %q", name, bad, p, c.param)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{streamBody, `{"model":"q","prompt":[[1],[2,3]],"n":2}`, `{"model":"a","MODEL":"b"}`, `{"model":"\ud83d\ude00","messages":[{"content":[{"type":"text","text":"\\\""}]}]}`, `{"a":"\\","model":"q"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, bad := parse("/", "chat", body)
		if bad != nil {
			if bad.message == "" || !utf8.ValidString(bad.message) {
				t.Errorf("fault text %q", bad.message)
			}
			return
		}
		if p.model == "" || p.sequences < 1 || p.sequences > maxSequences || p.maxTokens < 0 || p.textBytes < 0 || p.textBytes > len(body) || p.tokenIDs > len(body) {
			t.Errorf("%q: %+v", body, p)
		}
		// What another parser makes of it must route the same way.
		var other map[string]json.RawMessage
		if json.Unmarshal(body, &other) != nil {
			t.Fatalf("accepted %q, which encoding/json refuses", body)
		}
		var model string
		if utf8.Valid(body) && json.Unmarshal(other["model"], &model) == nil && model != p.model {
			t.Errorf("%q: model %q, encoding/json says %q", body, p.model, model)
		}
	})
}

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
		{"X-Request-Timeout", "soon", base, `The header x-request-timeout is "soon". Send seconds ("6"), or a number with a unit ("6s", "6000ms").`},
		{"X-Request-Timeout", "-6", base, `The header x-request-timeout is "-6". Send seconds ("6"), or a number with a unit ("6s", "6000ms").`},
		{"X-Request-Timeout", "nan", base, `The header x-request-timeout is "nan". Send seconds ("6"), or a number with a unit ("6s", "6000ms").`},
		{"X-Stainless-Read-Timeout", "600.0", base, ""}, // the SDK's default must not lengthen the wait
		{"X-Stainless-Read-Timeout", "5", with(func(l *limits) { l.deadline = 4 * time.Second }), ""},
		{"X-Stainless-Read-Timeout", "1e300", base, ""},
		{"X-Stainless-Timeout", "10", with(func(l *limits) { l.deadline = 8 * time.Second }), ""},
		{"X-Stainless-Timeout", "0", base, ""},
	} {
		t.Run(c.header+" "+c.value, func(t *testing.T) {
			h := http.Header{}
			h.Set(c.header, c.value)
			got, bad := parseLimits(h, &cfg)
			if bad != nil || c.fault != "" {
				if bad == nil || bad.message != c.fault {
					t.Errorf("fault %+v, want %q", bad, c.fault)
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
	f.Fuzz(func(t *testing.T, value string) {
		for _, name := range []string{"X-Penstock-Start-Timeout-Ms", "X-Slo-Ttft-Ms", "X-Slo-Tpot-Ms", "X-Request-Timeout", "X-Stainless-Timeout"} {
			l, bad := parseLimits(http.Header{name: {value}}, &cfg)
			if bad != nil {
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

func BenchmarkParse(b *testing.B) {
	body := []byte(`{"model":"q","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word and word again ", 400) + `"}],"max_tokens":8}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, bad := parse("/", "chat", body); bad != nil {
			b.Fatal(bad)
		}
	}
}
