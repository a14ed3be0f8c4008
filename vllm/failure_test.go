package vllm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"penstock/reason"
)

const contentEvent = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"

func answerWith(status int, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %d Text\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", status, len(body), body)
}

// unended is a stream's head and body without the end of the chunked framing.
func unended(body string) []byte {
	return []byte(strings.TrimSuffix(streamHead+string(chunked([]byte(body))), "0\r\n\r\n"))
}

func TestStreamRefused(t *testing.T) {
	const draining = `{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`
	tests := []struct {
		name   string
		wire   []byte
		hangUp bool // after wire
		reason reason.Reason
		status int
		body   string // "" = none
		says   string
	}{
		{"cap, as a status", fixture(t, "error-503-queue-full-chat-stream"), false, reason.EngineBusy, 503, fixtureBody(t, "error-503-queue-full-chat-stream"), "currently busy"},
		{"cap, as the first event", fixture(t, "error-503-after-200-chat-stream"), false, reason.EngineBusy, 503, `{"error": {"message": "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}`, "currently busy"},
		{"429 of another engine", answerWith(429, `{}`), false, reason.EngineBusy, 429, `{}`, "429"},
		{"too long", fixture(t, "error-context-length-stream"), false, reason.EngineRefused, 400, fixtureBody(t, "error-context-length-stream"), "maximum context length is 1024"},
		{"unknown model", fixture(t, "error-unknown-model"), false, reason.EngineRefused, 404, fixtureBody(t, "error-unknown-model"), "`nope` does not exist"},
		{"no route", fixture(t, "error-404"), false, reason.EngineRefused, 404, `{"detail":"Not Found"}`, "Not Found"},
		{"400 as the first event", unended(`data: {"error":{"message":"bad","code":400}}` + "\n\n"), false, reason.EngineRefused, 400, `{"error":{"message":"bad","code":400}}`, "bad"},
		{"error of before 0.10.1", answerWith(400, `{"object":"error","message":"flat","code":400}`), false, reason.EngineRefused, 400, `{"object":"error","message":"flat","code":400}`, ": flat"},
		{"our key is wrong", answerWith(401, `{"error":"Unauthorized"}`), false, reason.EngineDown, 401, `{"error":"Unauthorized"}`, "401"},
		{"engine dead", fixture(t, "error-500-engine-dead"), false, reason.EngineDown, 500, fixtureBody(t, "error-500-engine-dead"), "EngineCore"},
		{"draining", answerWith(500, draining), false, reason.EngineDrained, 500, draining, "after shutdown"},
		{"draining, as the first event", unended("data: " + draining + "\n\n"), false, reason.EngineDrained, 500, draining, "after shutdown"},
		{"redirect", []byte("HTTP/1.1 307 Text\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"), false, reason.EngineDown, 307, "", "307"},
		{"error answer above the bound", answerWith(400, `"`+strings.Repeat("x", refusalBytes)+`"`), false, reason.EngineRefused, 400, "", "xxx"},
		{"plain answer", answerWith(200, `{}`), false, reason.EngineDown, 0, "", "not an event stream"},
		{"not HTTP", []byte("hello\r\n\r\n"), true, reason.EngineDown, 0, "", "malformed"},
		{"closed before the answer", nil, true, reason.EngineDown, 0, "", "EOF"},
		{"closed before the first event", unended(`data: {"cho`), true, reason.EngineDown, 0, "", "without [DONE]"},
		{"ended before the first event", []byte(streamHead + "0\r\n\r\n"), false, reason.EngineDown, 0, "", "without [DONE]"},
		{"first event is not JSON", unended("data: hello\n\n"), false, reason.EngineDown, 0, "", "not JSON"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := serve(t, func(conn net.Conn, in *bufio.Reader, c captured) bool {
				return replay(tt.wire, 1<<30)(conn, in, c) && !tt.hangUp
			})
			s, err := connect(t, e.url).Stream(within(t), chat)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			checkError(t, err, tt.reason, tt.status, tt.says)
			var got *Error
			errors.As(err, &got)
			if string(got.Body) != tt.body {
				t.Errorf("body = %.200q, want %.200q", got.Body, tt.body)
			}
			if len(err.Error()) > messageBytes+500 {
				t.Errorf("error text has %d bytes", len(err.Error()))
			}
			if n := len(e.seen()); n != 1 {
				t.Errorf("the engine saw %d requests, want 1", n)
			}
		})
	}
}

func checkError(t *testing.T, err error, why reason.Reason, status int, says string) {
	t.Helper()
	var got *Error
	if !errors.As(err, &got) {
		t.Fatalf("error = %v, want an *Error", err)
	}
	if got.Reason != why || got.Status != status {
		t.Errorf("reason %v, status %d; want %v, %d (%v)", got.Reason, got.Status, why, status, err)
	}
	if !strings.Contains(err.Error(), says) {
		t.Errorf("error %q does not say %q", err, says)
	}
}

func TestStreamLost(t *testing.T) {
	tests := []struct {
		name   string
		wire   []byte
		hangUp bool
		shown  int // events before the failure
		reason reason.Reason
		status int
		says   string
	}{
		{"engine killed: error event and [DONE]", fixture(t, "stream-engine-killed"), false, 11, reason.UpstreamLost, 500, "EngineCore"},
		{"busy in the middle", unended(contentEvent + `data: {"error":{"message":"m","code":503}}` + "\n\n"), false, 1, reason.UpstreamLost, 503, ": m"},
		{"error without a code", unended(contentEvent + `data: {"error":"odd"}` + "\n\n"), false, 1, reason.UpstreamLost, 500, "odd"},
		{"clean end without [DONE]", []byte(streamHead + string(chunked([]byte(contentEvent)))), false, 1, reason.UpstreamLost, 0, "without [DONE]"},
		{"cut between events", unended(contentEvent + contentEvent), true, 2, reason.UpstreamLost, 0, "without [DONE]"},
		{"cut inside an event", unended(contentEvent + `data: {"cho`), true, 1, reason.UpstreamLost, 0, "without [DONE]"},
		{"garbage", unended(contentEvent + "data: {\"choices\":\n\n"), false, 1, reason.UpstreamLost, 0, "not JSON"},
		{"event above the bound", unended(contentEvent + "data: " + strings.Repeat("x", 5000) + "\n\n"), false, 1, reason.UpstreamLost, 0, "4096"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			gone := make(chan error, 1)
			e := serve(t, func(conn net.Conn, in *bufio.Reader, c captured) bool {
				replay(tt.wire, 1<<30)(conn, in, c)
				if !tt.hangUp {
					_, err := in.ReadByte()
					gone <- err
				}
				return false
			})
			c := connect(t, e.url, func(c *Config) { c.MaxEvent = 4096 })
			s, err := c.Stream(within(t), chat)
			if err != nil {
				t.Fatal(err)
			}
			events := 0
			for err == nil {
				if _, err = s.Next(); err == nil {
					events++
				}
			}
			if errors.Is(err, io.EOF) {
				t.Errorf("%v is io.EOF, which means success", err)
			}
			checkError(t, err, tt.reason, tt.status, tt.says)
			if events != tt.shown {
				t.Errorf("%d events before the failure, want %d", events, tt.shown)
			}
			if _, again := s.Next(); !errors.Is(again, err) {
				t.Errorf("later Next = %v, want the same error", again)
			}
			if !tt.hangUp {
				c.Close() // a body that ended cleanly leaves its connection in the pool
				<-gone    // every other one was closed without a call of s.Close
			}
			s.Close()
		})
	}
}

func TestConnectionRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, "http://"+l.Addr().String())
	l.Close()
	_, err = c.Stream(within(t), chat)
	checkError(t, err, reason.EngineDown, 0, "refused")
	_, err = c.Do(within(t), chat)
	checkError(t, err, reason.EngineDown, 0, "refused")
	_, err = c.Models(within(t))
	checkError(t, err, reason.EngineDown, 0, "refused")
}
