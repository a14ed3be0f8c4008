package vllmtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/vllm/simengine"
)

// transport keeps no connection: a pooled one would not survive a Restart.
var transport = &http.Transport{DisableKeepAlives: true}

const (
	chatHello    = `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":12,"ignore_eos":true`
	textHello    = `{"model":"tiny","prompt":"hello","max_tokens":12,"ignore_eos":true`
	withUsage    = `,"stream":true,"stream_options":{"include_usage":true}}`
	withEachUse  = `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
	chatPath     = "/v1/chat/completions"
	completePath = "/v1/completions"
)

// contract is one captured answer and the request that gives it.
var contract = []struct {
	file, method, path, body string
	header                   [2]string
	context                  int
}{
	{file: "chat", path: chatPath, body: chatHello + "}"},
	{file: "chat-stream", path: chatPath, body: chatHello + `,"stream":true}`},
	{file: "chat-stream-usage", path: chatPath, body: chatHello + withUsage},
	{file: "chat-stream-wire", path: chatPath, body: chatHello + withUsage},
	{file: "chat-stream-usage-continuous", path: chatPath, body: chatHello + withEachUse},
	{file: "chat-max-tokens-clamped-to-context", path: chatPath, body: `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("x", 1000) + `"}],"max_tokens":500,"ignore_eos":true}`},
	{file: "completions", path: completePath, body: textHello + "}", header: [2]string{"X-Request-Id", "fixed-1"}},
	{file: "completions-stream-usage", path: completePath, body: textHello + withUsage},
	{file: "completions-stream-usage-continuous", path: completePath, body: textHello + withEachUse},
	{file: "completions-n2-stream", path: completePath, body: `{"model":"tiny","prompt":"hello","n":2,"max_tokens":4,"ignore_eos":true` + withUsage},
	{file: "completions-stream", path: completePath, body: `{"model":"tiny","prompt":"hello","max_tokens":2,"ignore_eos":true,"stream":true,"stream_options":{"continuous_usage_stats":true}}`},
	{file: "completions-list", path: completePath, body: `{"model":"tiny","prompt":["hello","ab"],"n":2,"max_tokens":2,"ignore_eos":true}`},
	{file: "completions-list-stream-usage-continuous", path: completePath, body: `{"model":"tiny","prompt":["hello","ab"],"n":2,"max_tokens":2,"ignore_eos":true` + withEachUse},
	{file: "chat-n2-stream", path: chatPath, body: `{"model":"tiny","messages":[{"role":"user","content":"hello"}],"n":2,"max_tokens":2,"ignore_eos":true,"stream":true}`},
	{file: "error-404", method: http.MethodGet, path: "/nope"},
	{file: "error-405", method: http.MethodGet, path: completePath},
	{file: "error-bad-json", path: completePath, body: `{"model":`},
	{file: "error-405-get", path: "/v1/models"},
	{file: "error-bad-json-comma", path: completePath, body: `{"model":"tiny",}`},
	{file: "error-not-an-object", path: completePath, body: `[1]`},
	{file: "error-fraction", path: completePath, body: `{"model":"tiny","prompt":"x","max_tokens":1.5}`},
	{file: "error-n-zero", path: completePath, body: `{"model":"tiny","prompt":"x","n":0}`},
	{file: "error-no-prompts", path: completePath, body: `{"model":"tiny","prompt":[]}`},
	{file: "error-empty-prompt", path: completePath, body: `{"model":"tiny","prompt":"","max_tokens":2}`},
	{file: "error-min-over-max", path: completePath, body: `{"model":"tiny","prompt":"x","min_tokens":10,"max_tokens":5}`},
	{file: "error-messages-text", path: chatPath, body: `{"model":"tiny","messages":"x"}`},
	{file: "error-bad-type", path: completePath, body: `{"model":"tiny","prompt":"x","max_tokens":"many"}`},
	{file: "error-content-type", path: completePath, body: textHello + "}", header: [2]string{"Content-Type", "text/plain"}},
	{file: "error-context-length", path: completePath, body: `{"model":"tiny","prompt":"` + strings.Repeat("x", 1025) + `"}`},
	{file: "error-context-full", path: completePath, body: `{"model":"tiny","prompt":"` + strings.Repeat("x", 1024) + `"}`},
	{file: "error-context-length-stream", path: completePath, body: `{"model":"tiny","stream":true,"prompt":"` + strings.Repeat("x", 1025) + `"}`},
	{file: "error-context-length-chat", path: chatPath, body: `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("x", 4079) + `"}]}`, context: 4096},
	{file: "error-missing-field", path: chatPath, body: `{"model":"tiny"}`},
	{file: "error-negative-max-tokens", path: completePath, body: `{"model":"tiny","prompt":"x","max_tokens":-1}`},
	{file: "error-unknown-model", path: completePath, body: `{"model":"nope","prompt":"x"}`},
	{file: "health", method: http.MethodGet, path: "/health"},
	{file: "v1-models", method: http.MethodGet, path: "/v1/models"},
	{file: "version", method: http.MethodGet, path: "/version"},
}

// TestAnswersAsCaptured runs the requests of the captured answers and compares
// status, headers and bodies, but for ids, times and generated text.
func TestAnswersAsCaptured(t *testing.T) {
	e := Start(t)
	long := Start(t, WithBlocks(200), WithConfig(func(c *simengine.Config) { c.Engine.MaxModelLen = 4096 }))
	for _, c := range contract {
		t.Run(c.file, func(t *testing.T) {
			to := e
			if c.context != 0 {
				to = long
			}
			method := c.method
			if method == "" {
				method = http.MethodPost
			}
			r := newRequest(t, method, to.URL()+c.path, c.body)
			if c.header[0] != "" {
				r.Header.Set(c.header[0], c.header[1])
			}
			compare(t, c.file, live(t, r))
		})
	}
}

// TestCapAsCaptured fills an engine with a cap of one.
func TestCapAsCaptured(t *testing.T) {
	e := Start(t, WithConfig(func(c *simengine.Config) { c.Engine.MaxQueuedReqs = 1 }))
	stop := occupy(t, e)
	for _, c := range [][2]string{
		{"error-503-queue-full-chat", chatHello + "}"},
		{"error-503-queue-full-chat-stream", chatHello + withUsage},
	} {
		compare(t, c[0], live(t, newRequest(t, http.MethodPost, e.URL()+chatPath, c[1])))
	}
	compare(t, "error-503-queue-full-completions", live(t, newRequest(t, http.MethodPost, e.URL()+completePath, textHello+"}")))
	const rejected = `vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 3.0`
	if page, _, err := fetch(t, e, "/metrics"); err != nil || !strings.Contains(page, rejected) {
		t.Errorf("page lacks %s (%v)", rejected, err)
	}
	e.Break(Hung)
	stop()
	e.Restart() // hung: no step notices the first of a burst before the second comes
	e.Break(Hung)
	stop = occupy(t, e)
	defer stop()
	compare(t, "error-503-after-200-chat-stream", live(t, newRequest(t, http.MethodPost, e.URL()+chatPath, chatHello+withUsage)))
	compare(t, "error-503-after-200-completions-stream", live(t, newRequest(t, http.MethodPost, e.URL()+completePath, textHello+withUsage)))
}

// occupy starts one long stream and returns once the engine has it.
func occupy(t *testing.T, e *Engine) (stop func()) {
	t.Helper()
	r := newRequest(t, http.MethodPost, e.URL()+completePath, `{"prompt":"x","max_tokens":1000,"ignore_eos":true,"stream":true}`)
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	e.WaitFor("the request to arrive", func() bool { return e.InFlight() == 1 })
	if !e.has(Hung) {
		e.WaitFor("its first token", func() bool { return e.Running() == 1 })
	}
	return func() { resp.Body.Close() }
}

// TestDeathAsCaptured kills the engine's process under a stream and a plain request.
func TestDeathAsCaptured(t *testing.T) {
	e := Start(t)
	stream, err := transport.RoundTrip(newRequest(t, http.MethodPost, e.URL()+chatPath, strings.Replace(chatHello, "12", "900", 1)+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	plain := make(chan string, 1)
	go func() {
		plain <- dump(transport.RoundTrip(newRequest(t, http.MethodPost, e.URL()+chatPath, strings.Replace(chatHello, "12", "900", 1)+"}")))
	}()
	e.WaitFor("both to run", func() bool { return e.Running() == 2 && e.Stats().GenerationTokens > 20 })
	e.Break(EngineDead)
	compare(t, "error-500-engine-dead", <-plain)
	got := normalise(dump(stream, nil))
	want := normalise(string(readFile(t, "stream-engine-killed.http")))
	// The streams have different lengths: compare the first events and the last.
	ends := func(s string) string {
		events := strings.Split(s, "\n\n")
		return strings.Join(slices.Concat(events[:3], events[max(3, len(events)-3):]), "\n\n")
	}
	if diff := cmp.Diff(ends(want), ends(got)); diff != "" {
		t.Errorf("killed stream differs from the captured one (-captured +live):\n%s", diff)
	}
	if s := statusOf(t, e, "/health"); s != http.StatusServiceUnavailable {
		t.Errorf("/health of a dead engine is %d, want 503", s)
	}
	if s := statusOf(t, e, "/v1/models"); s != http.StatusOK {
		t.Errorf("/v1/models of a dead engine is %d, want 200", s)
	}
	e.Restart()
	if got := decode(t, e, textHello+"}"); got.Usage.Output != 12 {
		t.Errorf("after a restart: usage %+v, want 12 output tokens", got.Usage)
	}
}

func newRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return r
}

func live(t *testing.T, r *http.Request) string {
	t.Helper()
	return dump(transport.RoundTrip(r))
}

// dump writes an answer as the captured files have it, the body joined.
func dump(resp *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		body = append(body, err.Error()...)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\r\n", resp.Proto, resp.Status)
	_ = resp.Header.Write(&b)
	if len(resp.TransferEncoding) > 0 {
		fmt.Fprintf(&b, "transfer-encoding: %s\r\n", resp.TransferEncoding[0])
	}
	fmt.Fprintf(&b, "\r\n%s", body)
	return b.String()
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	want := normalise(string(readFile(t, file+".http")))
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(normalise(got), "\n")); diff != "" {
		t.Errorf("%s differs (-captured +live):\n%s", file, diff)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What differs from answer to answer.
var volatile = []struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`"(chatcmpl|cmpl|modelperm)-[0-9a-f]{16}"`), `"$1-ID"`},
	{regexp.MustCompile(`"created":\d+`), `"created":0`},
	{regexp.MustCompile(`("text"|\{"content"|"message":\{"role":"assistant","content"):"(\\.|[^"\\])*"`), `$1:"TEXT"`},
	{regexp.MustCompile(`vllm-0\.32\.0-[0-9a-f]{8}`), `vllm-0.32.0-BUILD`},
	{regexp.MustCompile(`"root":"[^"]*"`), `"root":"PATH"`},
}

// normalise gives the status, the headers in order and the body without what
// differs from answer to answer. Events are put in the order of their choices: how
// the choices of one answer alternate is a matter of timing.
func normalise(raw string) string {
	head, body, _ := strings.Cut(raw, "\r\n\r\n")
	status, fields, _ := strings.Cut(head, "\r\n")
	headers := strings.Split(fields, "\r\n")
	for i, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		headers[i] = strings.ToLower(name) + ": " + value
	}
	headers = slices.DeleteFunc(headers, func(h string) bool {
		return strings.HasPrefix(h, "date: ") || strings.HasPrefix(h, "connection: ") || strings.HasPrefix(h, "content-length: ") && h != "content-length: 0"
	})
	sort.Strings(headers)
	if i := strings.Index(body, "\r\n"); i > 0 && i < 5 { // still chunked
		joined, err := io.ReadAll(httputil.NewChunkedReader(bufio.NewReader(strings.NewReader(body))))
		if err == nil {
			body = string(joined)
		}
	}
	for _, v := range volatile {
		body = v.find.ReplaceAllString(body, v.with)
	}
	events := strings.Split(strings.TrimRight(body, "\n"), "\n\n")
	slices.SortStableFunc(events, func(a, b string) int { return strings.Compare(choiceOf(a), choiceOf(b)) })
	return status + "\n" + strings.Join(headers, "\n") + "\n\n" + strings.Join(events, "\n\n")
}

var choice = regexp.MustCompile(`"index":\d+`)

func choiceOf(event string) string {
	if c := choice.FindString(event); c != "" {
		return c
	}
	return "~" // after all choices: usage, error, [DONE]
}

// TestPageAsCaptured compares every line of the live page with the captured one,
// values aside: names, labels and their order, TYPE, buckets, _created.
func TestPageAsCaptured(t *testing.T) {
	e := Start(t)
	got := shapes(t, dump(transport.RoundTrip(newRequest(t, http.MethodGet, e.URL()+"/metrics", ""))))
	families := map[string]bool{}
	for _, line := range got {
		families[family(line)] = true
	}
	var want []string
	for _, line := range shapes(t, string(readFile(t, "metrics-idle-start.headers.txt"))+string(readFile(t, "metrics-idle-start.txt"))) {
		if name := family(line); name == "" || families[name] {
			want = append(want, line)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("page differs (-captured +live):\n%s", diff)
	}
	if len(families) < 15 {
		t.Errorf("only %d families compared", len(families))
	}
}

func TestFilteredPageAsCaptured(t *testing.T) {
	e := Start(t)
	query := "?name[]=vllm:kv_cache_usage_perc&name[]=vllm:num_requests_waiting&name[]=vllm:cache_config_info&name[]=vllm:num_preemptions_total&name[]=vllm:num_requests_running"
	got := shapes(t, dump(transport.RoundTrip(newRequest(t, http.MethodGet, e.URL()+"/metrics/"+query, ""))))
	want := shapes(t, string(readFile(t, "metrics-filtered.headers.txt"))+string(readFile(t, "metrics-filtered.txt")))
	sort.Strings(got) // vLLM's order is that of a set
	sort.Strings(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("filtered page differs (-captured +live):\n%s", diff)
	}
}

var sampleValue = regexp.MustCompile(`^(vllm:.*\}) (\d+\.\d+(e\+\d+)?)$`)

// shapes are a page's lines without HELP texts and values.
func shapes(t *testing.T, raw string) []string {
	t.Helper()
	var out []string
	inPage := false
	for line := range strings.Lines(strings.ReplaceAll(normalise(raw), `enable_prefix_caching="True"`, `enable_prefix_caching="False"`)) {
		line = strings.TrimRight(line, "\n")
		inPage = inPage || line == ""
		switch {
		case strings.HasPrefix(line, "# HELP"), inPage && !strings.Contains(line, "vllm:"):
		case strings.HasPrefix(line, "vllm:"):
			m := sampleValue.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("sample %q has no value like Python's", line)
				continue
			}
			out = append(out, m[1])
		default:
			out = append(out, line)
		}
	}
	return out
}

// family is the base name of a line's metric, "" if it isn't one of vLLM's.
func family(line string) string {
	_, name, ok := strings.Cut(line, "vllm:")
	if !ok {
		return ""
	}
	name = name[:strings.IndexFunc(name+" ", func(r rune) bool { return r == '{' || r == ' ' })]
	for _, suffix := range []string{"_created", "_bucket", "_count", "_sum", "_total"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return name
}

func TestCapturedPagesAreWhole(t *testing.T) {
	for _, d := range []Dialect{V032, V014, TwoServers, DataParallel} {
		page, kind := Page(d)
		if kind != typeFull || !bytes.Contains(page, []byte("vllm:kv_cache_usage_perc{engine=\"0\"")) {
			t.Errorf("dialect %d: %d bytes as %q without a KV usage", d, len(page), kind)
		}
	}
}
