package gateway

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/fleet"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

// echo is a gateway whose lane leads to a goroutine that answers at once: what is
// measured is the gateway alone.
func echo(tb testing.TB, run func(m *queue.Message, send func(response.Event))) *Gateway {
	var handle func(response.Event)
	stub := &stub{admission: registry.Admission{Reason: reason.OK}, engines: []registry.Engine{{Models: []string{"q"}, State: reason.OK, Seen: time.Now().Add(time.Hour)}}}
	rows := []fleet.Row{{Models: fleet.Models("q"), State: reason.OK, DrainRate: 1e6, At: time.Now().Add(time.Hour)}}
	g, err := New(DefaultConfig(), Deps{
		Records: stub, Directory: stub, Rows: func() []fleet.Row { return rows }, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		OpenMailbox: func(_ string, h func(response.Event)) (func(), error) { handle = h; return func() {}, nil },
		Publish: func(_ context.Context, m *queue.Message) error {
			seq := uint64(0)
			go run(m, func(e response.Event) {
				seq++
				e.ID, e.Attempt, e.Seq = m.ID, "a", seq
				handle(e)
			})
			return nil
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

var oneToken = []byte(`data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")

func answerWith(tokens int) func(m *queue.Message, send func(response.Event)) {
	return func(_ *queue.Message, send func(response.Event)) {
		send(response.Event{Kind: response.First, Payload: oneToken, Node: "n1", Tries: 1})
		for range tokens - 1 {
			send(response.Event{Kind: response.Chunk, Payload: oneToken})
		}
		send(response.Event{Kind: response.Chunk, Payload: []byte(doneEvent)})
		send(response.Event{Kind: response.Done, Reason: reason.Finished})
	}
}

// BenchmarkRequest is one short streamed request without a network.
func BenchmarkRequest(b *testing.B) {
	g := echo(b, answerWith(2))
	h := g.Handler()
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", chatPath, strings.NewReader(streamBody)))
	}
}

// BenchmarkToken is one streamed token over a loopback connection, flushed alone:
// the writer sends the next when the client has the one before.
func BenchmarkToken(b *testing.B) {
	next := make(chan struct{}, 1)
	g := echo(b, func(_ *queue.Message, send func(response.Event)) {
		send(response.Event{Kind: response.First, Payload: oneToken})
		for range next {
			send(response.Event{Kind: response.Chunk, Payload: oneToken})
		}
		send(response.Event{Kind: response.Chunk, Payload: []byte(doneEvent)})
		send(response.Event{Kind: response.Done, Reason: reason.Finished})
	})
	server := httptest.NewServer(g.Handler())
	defer server.Close()
	resp, err := http.Post(server.URL+chatPath, "application/json", strings.NewReader(streamBody))
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	buf := make([]byte, len(oneToken))
	read := func() {
		if _, err := io.ReadFull(resp.Body, buf); err != nil {
			b.Fatal(err)
		}
	}
	read()
	b.ReportAllocs()
	for b.Loop() {
		next <- struct{}{}
		read()
	}
	close(next)
	_, _ = io.Copy(io.Discard, resp.Body)
}

// BenchmarkAddedLatency compares the time to the first byte and to the end of a
// stream with what httputil.ReverseProxy adds over the same loopback.
func BenchmarkAddedLatency(b *testing.B) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			_, _ = w.Write(oneToken)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, doneEvent)
	}))
	defer engine.Close()
	to, _ := url.Parse(engine.URL)
	for name, h := range map[string]http.Handler{
		"gateway": echo(b, answerWith(2)).Handler(), "proxy": &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1}, "direct": engine.Config.Handler,
	} {
		b.Run(name, func(b *testing.B) {
			server := httptest.NewServer(h)
			defer server.Close()
			var took []time.Duration
			for b.Loop() {
				begun := time.Now()
				resp, err := http.Post(server.URL+chatPath, "application/json", strings.NewReader(streamBody))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
