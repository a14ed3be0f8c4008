package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"penstock/cmd/penstock/flags"
	"penstock/cmd/penstock/stack"
	"penstock/scheduler"
	"penstock/vllm/vllmtest"
)

// waitLimit is how long a condition may take before its test fails.
const waitLimit = 15 * time.Second

// clientLimit makes a request that has no outcome an error and not a test that
// hangs: past the start deadline of 30 s and everything a test lets run.
const clientLimit = time.Minute

// process is a whole standalone penstock under test, in front of engines.
type process struct {
	t *testing.T
	*stack.Standalone
	log    *logLines
	client *http.Client // of the API
	ops    *http.Client // of the admin listener
	health healthpb.HealthClient
	starve atomic.Int64       // ns: the longest this process got no CPU for
	stop   context.CancelFunc // as SIGTERM does
	ended  chan struct{}
	err    error // of Run, once ended
}

// startProcess runs penstock in front of engines until the test ends, and returns
// once it is ready. The engines must be started first: they outlive it then.
func startProcess(t *testing.T, edit func(*flags.Options), engines ...string) *process {
	t.Helper()
	opts := &flags.Options{
		Engines: engines, Listen: "127.0.0.1:0", GRPC: "127.0.0.1:0", Admin: "127.0.0.1:0",
		SLOTTFT: 2 * time.Second, RefuseLaw: "rate", Law: scheduler.DefaultConfig().Law, Grace: time.Second,
	}
	if edit != nil {
		edit(opts)
	}
	p := &process{t: t, log: &logLines{}, ended: make(chan struct{})}
	s, err := stack.NewStandalone(opts, slog.New(slog.NewTextHandler(p.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	p.Standalone = s
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	p.client = &http.Client{Transport: transport, Timeout: clientLimit}
	p.ops = p.client
	conn, err := grpc.NewClient(s.GRPCAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	p.health = healthpb.NewHealthClient(conn)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.ended)
		p.err = s.Run(ctx)
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.watchCPU()
	}()
	t.Cleanup(func() {
		stop()
		<-p.ended
		<-watched
		transport.CloseIdleConnections()
		_ = conn.Close()
		if t.Failed() {
			t.Logf("log:\n%s", p.log.tail(60))
		}
	})
	p.until("ready", func() bool { return p.readyz() == "" })
	return p
}

const starved = 50 * time.Millisecond // from here bounds on time say nothing

// watchCPU notes how late this process wakes up, until penstock has ended.
func (p *process) watchCPU() {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-tick.C:
		case <-p.ended:
			return
		}
		now := time.Now()
		p.starve.Store(max(p.starve.Load(), int64(now.Sub(last)-every)))
		last = now
	}
}

// bound reports a bound on time, or what depends on one (an engine that cannot be
// scraped in time is not used), that does not hold. On a machine that lets this
// process wait for its CPU it says so instead: then nothing follows from it.
func (p *process) bound(format string, args ...any) {
	p.t.Helper()
	if got := time.Duration(p.starve.Load()); got >= starved {
		p.t.Logf("not judged, since this process got no CPU for %v: "+format, append([]any{got.Round(time.Millisecond)}, args...)...)
		return
	}
	p.t.Errorf(format, args...)
}

func urls(engines ...*vllmtest.Engine) []string {
	all := make([]string, len(engines))
	for i, e := range engines {
		all[i] = e.URL()
	}
	return all
}

// until waits for a condition.
func (p *process) until(what string, holds func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(waitLimit)
	for !holds() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited %v for: %s", waitLimit, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// page gets one page of the admin listener.
func (p *process) page(path string) (status int, body []byte) {
	p.t.Helper()
	resp, err := p.ops.Get("http://" + p.AdminAddress() + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, body
}

// readyz is why penstock is not ready, "" if it is.
func (p *process) readyz() string {
	p.t.Helper()
	status, body := p.page("/readyz")
	if status == http.StatusOK {
		return ""
	}
	return string(bytes.TrimSpace(body))
}

// serving is what gRPC health says of everything.
func (p *process) serving() bool {
	p.t.Helper()
	resp, err := p.health.Check(p.t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
}

// families is the metrics page, parsed.
func (p *process) families() map[string]*dto.MetricFamily {
	p.t.Helper()
	_, body := p.page("/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// metric sums the samples of a counter or gauge that carry all of labels, given as
// "name=value".
func (p *process) metric(name string, labels ...string) float64 {
	p.t.Helper()
	sum := 0.0
	for _, m := range p.families()[name].GetMetric() {
		if carries(m, labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func carries(m *dto.Metric, labels []string) bool {
	has := map[string]bool{}
	for _, l := range m.GetLabel() {
		has[l.GetName()+"="+l.GetValue()] = true
	}
	for _, l := range labels {
		if !has[l] {
			return false
		}
	}
	return true
}

// completion is the body of a request: so many prompt and output tokens of vllmtest's
// engines, where a byte is a token.
func completion(prompt, output int, more string) string {
	return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":%d,"ignore_eos":true,"temperature":0%s}`, strings.Repeat("x", prompt), output, more)
}

const (
	streamed  = `,"stream":true`
	withUsage = `,"stream":true,"stream_options":{"include_usage":true}`
)

// send posts a completion; header is "name", "value", ….
func (p *process) send(ctx context.Context, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.Address()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return p.client.Do(req)
}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   string
	took   time.Duration
	err    error // the connection broke
}

func (r reply) reason() string { return r.header.Get("X-Penstock-Reason") }

func (r reply) String() string {
	return fmt.Sprintf("%d %s retry-after %q after %v, err %v: %.300s", r.status, r.reason(), r.header.Get("Retry-After"), r.took.Round(time.Millisecond), r.err, r.body)
}

// complete reports whether a stream ended as it should.
func (r reply) complete() bool {
	return r.err == nil && r.status == http.StatusOK && strings.HasSuffix(r.body, "data: [DONE]\n\n") && !strings.Contains(r.body, `"error"`)
}

// refused reports whether the answer is an honest refusal: a status that says
// "not now", why, and when to come back.
func (r reply) refused() bool {
	var seconds int
	_, err := fmt.Sscanf(r.header.Get("Retry-After"), "%d", &seconds)
	busy := r.status == http.StatusTooManyRequests || r.status == http.StatusServiceUnavailable || r.status == http.StatusGatewayTimeout
	return r.err == nil && busy && r.reason() != "" && err == nil && seconds >= 1 && seconds <= 60 && json.Valid([]byte(r.body))
}

// post sends a completion and reads all of its answer.
func (p *process) post(body string, header ...string) reply {
	start := time.Now()
	resp, err := p.send(p.t.Context(), body, header...)
	if err != nil {
		return reply{err: err, took: time.Since(start)}
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(all), time.Since(start), err}
}

// background is post in its own goroutine.
func (p *process) background(body string, header ...string) <-chan reply {
	done := make(chan reply, 1)
	go func() { done <- p.post(body, header...) }()
	return done
}

// stream is an answer in progress.
type stream struct {
	resp   *http.Response
	reader *bufio.Reader
	close  func()
}

// open sends a streamed completion and returns once its first event is there.
func (p *process) open(body string) *stream {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	resp, err := p.send(ctx, body)
	if err != nil {
		cancel()
		p.t.Fatal(err)
	}
	s := &stream{resp, bufio.NewReader(resp.Body), func() { cancel(); _ = resp.Body.Close() }}
	p.t.Cleanup(s.close)
	if event, err := s.next(); err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("stream: status %d, first event %q, error %v", resp.StatusCode, event, err)
	}
	return s
}

// next is the next event's data; io.EOF after the last.
func (s *stream) next() (string, error) {
	for {
		line, err := s.reader.ReadString('\n')
		if err != nil {
			return "", err
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimRight(data, "\n"), nil
		}
	}
}

// rest reads to the end: a clean one, or what broke it.
func (s *stream) rest() (events []string, err error) {
	defer s.close()
	for {
		event, err := s.next()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, event)
	}
}

// logLines keeps what penstock logged.
type logLines struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *logLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

func (l *logLines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

func (l *logLines) tail(n int) string {
	all := l.all()
	return strings.Join(all[max(0, len(all)-n):], "")
}

// newH2C is a client that speaks HTTP/2 without TLS, over one connection.
func newH2C(t *testing.T) *http.Client {
	transport := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: clientLimit}
}
