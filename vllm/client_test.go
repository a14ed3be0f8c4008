package vllm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
)

func TestValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("default config: %v", err)
	}
	tests := []struct {
		name   string
		change func(*Config)
		says   string // "" = valid
	}{
		{"socket", func(c *Config) { c.URL = "unix:///run/vllm.sock" }, ""},
		{"slash at the end", func(c *Config) { c.URL = "http://gpu-1:8000/" }, ""},
		{"empty URL", func(c *Config) { c.URL = "" }, `URL is ""`},
		{"no scheme", func(c *Config) { c.URL = "gpu-1:8000" }, `URL is "gpu-1:8000"`},
		{"TLS", func(c *Config) { c.URL = "https://gpu-1:8000" }, "give http://host:port"},
		{"password", func(c *Config) { c.URL = "http://u:secret@gpu-1" }, "u:xxxxx@"},
		{"with /v1", func(c *Config) { c.URL = "http://gpu-1:8000/v1" }, "drop everything after the port"},
		{"socket with two slashes", func(c *Config) { c.URL = "unix://run/vllm.sock" }, "three slashes"},
		{"key with a line end", func(c *Config) { c.APIKey = "secret\n" }, "APIKey"},
		{"no stall limit", func(c *Config) { c.StallLimit = 0 }, "StallLimit is 0s"},
		{"no dial timeout", func(c *Config) { c.DialTimeout = -1 }, "DialTimeout is -1ns"},
		{"tiny events", func(c *Config) { c.MaxEvent = 1 }, "MaxEvent is 1"},
		{"huge answers", func(c *Config) { c.MaxAnswer = 1 << 40 }, "MaxAnswer is 1099511627776"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := DefaultConfig()
			tt.change(&cfg)
			_, err := New(cfg)
			switch {
			case tt.says == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("error %v, want one that says %q", err, tt.says)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("error shows a secret: %v", err)
			}
		})
	}
}

func TestWhatIsSent(t *testing.T) {
	e := serve(t, replay(fixture(t, "chat-stream"), 1<<30))
	c := connect(t, e.url, func(c *Config) { c.APIKey = "engine-key" })
	for _, trace := range []string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "bad\r\nx: y", ""} {
		req := chat
		req.Traceparent = trace
		s, err := c.Stream(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		shown(s)
		s.Close()
	}
	for i, got := range e.seen() {
		header := map[string]string{}
		for name := range got.Header {
			header[name] = got.Header.Get(name)
		}
		want := map[string]string{
			"Authorization": "Bearer engine-key", "Content-Type": "application/json",
			"X-Request-Id": "a-1", "User-Agent": "penstock", "Content-Length": "74",
		}
		if i == 0 {
			want["Traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		}
		if diff := cmp.Diff(want, header); diff != "" {
			t.Errorf("request %d: header (-want +got):\n%s", i, diff)
		}
		if string(got.body) != string(chat.Body) || got.URL.Path != chat.Path || got.Proto != "HTTP/1.1" {
			t.Errorf("request %d: %s %s with body %s", i, got.Proto, got.URL, got.body)
		}
		if got.conn != 0 {
			t.Errorf("request %d came on connection %d, want the pooled 0", i, got.conn)
		}
	}
}

func TestDo(t *testing.T) {
	tests := []struct {
		name   string
		wire   []byte
		usage  Usage
		reason reason.Reason // 0 = an answer
		status int
	}{
		{"chat", fixture(t, "chat"), Usage{Prompt: 23, Output: 12, Known: true}, 0, 200},
		{"cached tokens", fixture(t, "chat-cached-tokens"), Usage{Prompt: 258, Output: 3, Cached: 256, Known: true}, 0, 200},
		{"no usage", answerWith(200, `{"data":[]}`), Usage{}, 0, 200},
		{"cap", fixture(t, "error-503-queue-full-chat-stream"), Usage{}, reason.EngineBusy, 503},
		{"refused", fixture(t, "error-unknown-model"), Usage{}, reason.EngineRefused, 404},
		{"cut in the body", []byte("HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{"), Usage{}, reason.EngineDown, 0},
		{"above the bound", answerWith(200, `{"a":"`+strings.Repeat("x", 5000)+`"}`), Usage{}, reason.UpstreamLost, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t, serve(t, replay(tt.wire, 1<<30)).url, func(c *Config) { c.MaxAnswer = 4096 })
			got, err := c.Do(within(t), chat)
			if tt.reason != 0 {
				checkError(t, err, tt.reason, tt.status, "/v1/chat/completions")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_, body, _ := strings.Cut(string(tt.wire), "\r\n\r\n")
			if got.Status != tt.status || string(got.Body) != body || got.Usage != tt.usage {
				t.Errorf("answer = %d %s %+v, want %d %s %+v", got.Status, got.Body, got.Usage, tt.status, body, tt.usage)
			}
		})
	}
}

func TestModelsAndVersion(t *testing.T) {
	c := connect(t, serve(t, func(conn net.Conn, in *bufio.Reader, req captured) bool {
		name := map[string]string{"/v1/models": "v1-models", "/version": "version"}[req.URL.Path]
		return replay(fixture(t, name), 1<<30)(conn, in, req)
	}).url)
	models, err := c.Models(within(t))
	if diff := cmp.Diff([]Model{{ID: "tiny", MaxModelLen: 1024}}, models); diff != "" || err != nil {
		t.Errorf("models: %v (-want +got):\n%s", err, diff)
	}
	if version, err := c.Version(within(t)); version != "0.32.0" || err != nil {
		t.Errorf("version = %q, %v; want 0.32.0", version, err)
	}
}

func TestModelsNotJSON(t *testing.T) {
	_, err := connect(t, serve(t, replay(answerWith(200, "<html>"), 1<<30)).url).Models(within(t))
	checkError(t, err, reason.EngineDown, 0, "invalid character")
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, &engine{}, replay(fixture(t, "version"), 1<<30))
	if version, err := connect(t, "unix://"+path).Version(within(t)); version != "0.32.0" || err != nil {
		t.Errorf("version = %q, %v; want 0.32.0", version, err)
	}
}

func TestProbeUsage(t *testing.T) {
	tests := []struct {
		name   string
		wires  [][]byte // one per request
		state  int32
		reason reason.Reason // of the first probe's error, 0 = none
		asks   int           // requests after two probes
	}{
		{"accepted", [][]byte{fixture(t, "completions-stream-usage-continuous")}, usageAccepted, 0, 1},
		{"ignored", [][]byte{fixture(t, "chat-stream")}, usageRefused, 0, 1},
		{"refused", [][]byte{answerWith(400, `{}`)}, usageRefused, 0, 1},
		{"busy, then accepted", [][]byte{answerWith(503, `{}`), fixture(t, "completions-stream-usage-continuous")}, usageAccepted, reason.EngineBusy, 2},
		{"cut, then refused", [][]byte{unended(contentEvent), answerWith(404, `{}`)}, usageRefused, reason.UpstreamLost, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			next := 0
			e := serve(t, func(conn net.Conn, in *bufio.Reader, req captured) bool {
				wire := tt.wires[next]
				next++
				return replay(wire, 1<<30)(conn, in, req) && bytes.Contains(wire, []byte("content-length"))
			})
			c := connect(t, e.url)
			err := c.ProbeUsage(within(t), `ti"ny`)
			if tt.reason != 0 {
				checkError(t, err, tt.reason, c.lastStatus(err), "/v1/completions")
			} else if err != nil {
				t.Errorf("first probe: %v", err)
			}
			if err := c.ProbeUsage(within(t), `ti"ny`); err != nil {
				t.Errorf("second probe: %v", err)
			}
			if got := c.usage.Load(); got != tt.state {
				t.Errorf("state = %d, want %d", got, tt.state)
			}
			seen := e.seen()
			if len(seen) != tt.asks {
				t.Fatalf("the engine saw %d requests, want %d", len(seen), tt.asks)
			}
			const want = `{"model":"ti\"ny","prompt":"a","max_tokens":1,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`
			if string(seen[0].body) != want {
				t.Errorf("probe = %s, want %s", seen[0].body, want)
			}
		})
	}
}

func (c *Client) lastStatus(err error) int {
	var e *Error
	errors.As(err, &e)
	return e.Status
}

func TestInjectionNeedsTheProbe(t *testing.T) {
	e := serve(t, replay(fixture(t, "completions-stream-usage-continuous"), 1<<30))
	c := connect(t, e.url)
	for range 2 {
		s, err := c.Stream(within(t), chat)
		if err != nil {
			t.Fatal(err)
		}
		shown(s)
		s.Close()
		if err := c.ProbeUsage(within(t), "tiny"); err != nil {
			t.Fatal(err)
		}
	}
	seen := e.seen()
	if got := string(seen[0].body); got != string(chat.Body) {
		t.Errorf("before the probe: sent %s", got)
	}
	if got := string(seen[2].body); !strings.Contains(got, `"continuous_usage_stats":true`) {
		t.Errorf("after the probe: sent %s", got)
	}
}

// TestPooledConnectionClosed holds for a connection the engine closed while it
// was idle: the next request goes over a new one, and is sent once.
func TestPooledConnectionClosed(t *testing.T) {
	closed := make(chan struct{}, 1)
	e := serve(t, func(conn net.Conn, in *bufio.Reader, req captured) bool {
		replay(fixture(t, "chat"), 1<<30)(conn, in, req)
		conn.Close()
		closed <- struct{}{}
		return false
	})
	c := connect(t, e.url)
	sent := 0
	for range 50 {
		_, err := c.Do(within(t), chat)
		if err != nil {
			// Only a connection that broke after the request was written may show.
			checkError(t, err, reason.EngineDown, 0, "")
			continue
		}
		sent++
		<-closed
	}
	if got := len(e.seen()); got != sent {
		t.Errorf("the engine read %d requests for %d answers", got, sent)
	}
	t.Logf("%d of 50 answered", sent)
}

func TestDoEndsWithItsContext(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan error, 1)
	e := serve(t, func(_ net.Conn, in *bufio.Reader, _ captured) bool {
		close(arrived)
		_, err := in.ReadByte()
		gone <- err
		return false
	})
	ctx, cancel := context.WithTimeout(within(t), time.Hour)
	go func() { <-arrived; cancel() }()
	_, err := connect(t, e.url).Do(ctx, chat)
	checkError(t, err, reason.Aborted, 0, "canceled")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v does not wrap context.Canceled", err)
	}
	<-gone
}
