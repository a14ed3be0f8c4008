package vllm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait on a real socket.
const patience = 10 * time.Second

// fixture is a captured answer as it goes over the wire.
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	if !bytes.Contains(head, []byte("chunked")) || !bytes.HasPrefix(body, []byte("data:")) {
		return raw
	}
	return append(append(head, "\r\n\r\n"...), chunked(body)...)
}

// chunked frames a body as vLLM does: one chunk per event.
func chunked(body []byte) []byte {
	var wire bytes.Buffer
	for len(body) > 0 {
		n := len(body)
		if i := bytes.Index(body, []byte("\n\n")); i >= 0 {
			n = i + 2
		}
		fmt.Fprintf(&wire, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	wire.WriteString("0\r\n\r\n")
	return wire.Bytes()
}

const streamHead = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

// engine is a scripted server on a real socket.
type engine struct {
	url string

	mu       sync.Mutex // guards requests
	requests []captured
}

type captured struct {
	*http.Request
	body []byte
	conn int // which connection, from 0
}

func (e *engine) seen() []captured {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]captured(nil), e.requests...)
}

// script answers one request; false closes the connection.
type script func(conn net.Conn, in *bufio.Reader, req captured) bool

func serve(t testing.TB, answer script) *engine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{url: "http://" + l.Addr().String()}
	serveOn(t, l, e, answer)
	return e
}

func serveOn(t testing.TB, l net.Listener, e *engine, answer script) {
	var running sync.WaitGroup
	var conns sync.Map
	running.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(conn, true)
			running.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, _ := io.ReadAll(req.Body)
					c := captured{req, body, n}
					e.mu.Lock()
					e.requests = append(e.requests, c)
					e.mu.Unlock()
					if !answer(conn, in, c) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(conn, _ any) bool { conn.(net.Conn).Close(); return true })
		running.Wait()
	})
}

// replay answers every request with the same bytes, in pieces of the given size.
func replay(wire []byte, piece int) script {
	return func(conn net.Conn, _ *bufio.Reader, _ captured) bool {
		for rest := wire; len(rest) > 0; {
			n := min(piece, len(rest))
			if _, err := conn.Write(rest[:n]); err != nil {
				return false
			}
			rest = rest[n:]
		}
		return !bytes.Contains(wire, []byte("connection: close"))
	}
}

func connect(t testing.TB, url string, change ...func(*Config)) *Client {
	t.Helper()
	cfg := DefaultConfig()
	cfg.URL = url
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var chat = Request{
	Path: "/v1/chat/completions", Attempt: "a-1", Stream: true,
	Body: []byte(`{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}`),
}

// shown is everything a client would see, the last totals, and how it ended.
func shown(s *Stream) (text string, last Usage, err error) {
	var all strings.Builder
	for {
		chunk, err := s.Next()
		if err != nil {
			return all.String(), last, err
		}
		all.Write(chunk.Bytes)
		last = chunk.Usage
	}
}

func fixtureBody(t testing.TB, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(raw), "\r\n\r\n")
	return body
}
