package scraper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/scheduler"
)

const patience = 10 * time.Second // of a test that waits for something that must come

// live is a Scraper on a real socket; its callbacks go to channels that hold the latest.
func live(t *testing.T, cfg Config) (samples chan scheduler.Sample, bad chan *Error) {
	t.Helper()
	samples, bad = make(chan scheduler.Sample, 1), make(chan *Error, 1)
	s, err := New(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler),
		func(s scheduler.Sample) { keepLatest(samples, s) },
		func(_ time.Time, err error) { keepLatest(bad, asError(err)) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return samples, bad
}

func keepLatest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

func fastConfig(url string) Config {
	cfg := DefaultConfig()
	cfg.URL, cfg.Interval = url, 10*time.Millisecond
	return cfg
}

func TestFaults(t *testing.T) {
	write := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    Problem
	}{
		{"accepts and never answers", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Timeout},
		{"answers a byte at a time", func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(goodPage) && r.Context().Err() == nil; i++ {
				io.WriteString(w, goodPage[i:i+1])
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(5 * time.Millisecond):
				}
			}
		}, Timeout},
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, Status},
		{"404", http.NotFound, Status},
		{"redirect to a good page", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/good" {
				io.WriteString(w, goodPage)
				return
			}
			http.Redirect(w, r, "/good", http.StatusTemporaryRedirect)
		}, Status},
		{"html", write("<html><body>" + goodPage + "</body></html>\n"), Garbage},
		{"empty", write(""), Empty},
		{"no vllm names", write("python_info 1\n"), Missing},
		{"5 MiB page", write(goodPage + strings.Repeat("x 1\n", 5<<20/4)), TooLarge},
		{"5 MiB label", write(goodPage + `x{a="` + strings.Repeat("y", 5<<20) + "\"} 1\n"), TooLarge},
		{"closed in the middle", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, goodPage)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, Truncated},
		{"closed before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Unreachable},
		{"cut without a length", func(w http.ResponseWriter, _ *http.Request) {
			conn, buf, _ := w.(http.Hijacker).Hijack()
			buf.WriteString("HTTP/1.0 200 OK\r\n\r\n" + goodPage + "vllm:prompt_tokens_total 12")
			buf.Flush()
			conn.Close()
		}, Truncated},
		{"NaN", write(strings.Replace(goodPage, "0.5", "NaN", 1)), NotFinite},
		{"KV in percent", write(strings.Replace(goodPage, "0.5", "50", 1)), OutOfRange},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tc.handler)
			defer server.Close()
			defer server.CloseClientConnections()
			cfg := fastConfig(server.URL)
			if tc.want == Timeout {
				cfg.Timeout = 40 * time.Millisecond
			} else {
				cfg.Timeout = 500 * time.Millisecond // busy test machines
			}
			samples, bad := live(t, cfg)
			for deadline := time.After(patience); ; {
				select {
				case s := <-samples:
					t.Fatalf("sample %+v, want %v", s, tc.want)
				case err := <-bad:
					if err.Problem == Timeout && tc.want != Timeout {
						continue // the machine is busy
					}
					if err.Problem != tc.want {
						t.Errorf("%v, want %v", err, tc.want)
					}
					return
				case <-deadline:
					t.Fatalf("nothing in %v, want %v", patience, tc.want)
				}
			}
		})
	}
}

func TestRefusedThenBack(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	samples, bad := live(t, fastConfig("http://"+addr))
	if err := next(t, bad); err.Problem != Unreachable {
		t.Errorf("%v, want unreachable", err)
	}
	if listener, err = net.Listen("tcp", addr); err != nil {
		t.Fatalf("the port was taken meanwhile: %v", err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, goodPage) })}}
	server.Start()
	defer server.Close()
	defer server.CloseClientConnections()
	if s := next(t, samples); s.Running != 3 {
		t.Errorf("running %d, want 3", s.Running)
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, goodPage) })}}
	server.Start()
	defer server.Close()
	defer server.CloseClientConnections()
	samples, _ := live(t, fastConfig("unix://"+path))
	if s := next(t, samples); s.KV != 0.5 {
		t.Errorf("kv %v, want 0.5", s.KV)
	}
}

// TestNamesAreAskedFor: an engine that honours name[] behind the slash, like
// vLLM's, is read by names over one connection, uncompressed.
func TestNamesAreAskedFor(t *testing.T) {
	t.Parallel()
	full := readPage(t, "running-and-waiting").body
	var byNames, dials atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Accept-Encoding"); got != "" {
			t.Errorf("Accept-Encoding %q, want none", got)
		}
		switch r.URL.Path {
		case "/metrics":
			w.Write(full)
		case "/metrics/":
			byNames.Add(1)
			for line := range bytes.Lines(full) {
				if n := bytes.IndexAny(line, "{ "); slices.Contains(r.URL.Query()["name[]"], string(line[:n])) {
					w.Write(line)
				}
			}
		default:
			t.Errorf("asked for %s", r.URL)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dials.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	defer server.CloseClientConnections()
	cfg := fastConfig(server.URL)
	cfg.Timeout = 500 * time.Millisecond
	samples, _ := live(t, cfg)
	for byNames.Load() < 5 {
		s := next(t, samples)
		if s.Running != 14 || s.KVTokens != 2048 || s.Steps != 6194 || s.Tokens != 93232 {
			t.Fatalf("sample %+v differs from the full page's", s)
		}
	}
	if n := dials.Load(); n > 2 { // one, and another should a busy machine make a scrape time out
		t.Errorf("%d connections, want one that is kept", n)
	}
}

// TestConnectionClosedBetweenPages: an engine that hangs up after each answer, without a
// word, costs a dial and no sample.
func TestConnectionClosedBetweenPages(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintf(buf, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(goodPage), goodPage)
		buf.Flush()
		conn.Close()
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dials.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	cfg := fastConfig(server.URL)
	cfg.Timeout = 500 * time.Millisecond
	samples, bad := live(t, cfg)
	for dials.Load() < 5 {
		next(t, samples)
	}
	select {
	case err := <-bad:
		t.Errorf("got %v, want no bad sample", err)
	default:
	}
}

// TestEndsWhileItReads: the end of Run does not wait for an engine that does not answer.
func TestEndsWhileItReads(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 8)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	c := newClient(fastConfig(server.URL))
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline
	done := make(chan error, 1)
	go func() { _, err := c.fetch(ctx, false); done <- err }()
	next(t, asked)
	cancel()
	if err := next(t, done); err == nil {
		t.Error("got a page, want an error")
	}
}

func TestBufferIsBounded(t *testing.T) {
	c := newClient(fastConfig("http://h:1"))
	if err := c.readBody(endless{}); asError(err).Problem != TooLarge {
		t.Errorf("%v, want too large", err)
	}
	if cap(c.buf) > 4<<20+1 {
		t.Errorf("buffer of %d bytes, want at most the longest page", cap(c.buf))
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func next[T any](t *testing.T, c chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("nothing in %v", patience)
	}
	return v
}
