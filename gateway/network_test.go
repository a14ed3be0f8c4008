package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/response"
)

// protocols are the clients every network test runs with.
func protocols(t *testing.T, test func(t *testing.T, c *http.Client)) {
	for _, name := range []string{"http1", "h2c"} {
		t.Run(name, func(t *testing.T) {
			tr := &http.Transport{Protocols: new(http.Protocols)}
			tr.Protocols.SetHTTP1(name == "http1")
			tr.Protocols.SetUnencryptedHTTP2(name == "h2c")
			t.Cleanup(tr.CloseIdleConnections)
			test(t, &http.Client{Transport: tr})
		})
	}
}

func TestStreamsEventByEvent(t *testing.T) {
	protocols(t, func(t *testing.T, c *http.Client) {
		s := newStage(t, nil).serve()
		step := make(chan struct{})
		go func() {
			n := s.start()
			n.first(chunk1)
			<-step
			n.send(response.Chunk, chunk2)
			<-step
			n.send(response.Chunk, doneEvent)
			n.done("")
		}()
		resp, err := s.do(t.Context(), c, streamBody)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		buf := make([]byte, len(chunk1))
		for _, want := range []string{chunk1, chunk2} {
			if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != want {
				t.Fatalf("read %q, %v, want %q before the next event is sent", buf, err, want)
			}
			step <- struct{}{}
		}
		if got := readAll(t, resp.Body); got != doneEvent {
			t.Errorf("end = %q, want %q", got, doneEvent)
		}
	})
}

// TestClientLeaves closes the real connection or stream.
func TestClientLeaves(t *testing.T) {
	protocols(t, func(t *testing.T, c *http.Client) {
		for _, stage := range []string{"queued", "running", "streaming"} {
			s := newStage(t, nil).serve()
			ctx, leave := context.WithCancel(t.Context())
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				resp, err := s.do(ctx, c, streamBody)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if err == nil || ctx.Err() == nil { // its own cancel, or the reset that the gateway answers it with
					t.Errorf("client saw %v, want an error once it has left", err)
				}
			}()
			m := s.message()
			if stage != "queued" {
				n := s.claim(m)
				if stage == "streaming" {
					n.first(chunk1)
					eventually(t, "the first event is out", func() bool { return s.g.open.Load() == 1 && counter(t, s, "penstock_open_requests") == 1 })
				}
			}
			leave()
			<-answered
			eventually(t, "the abort of a "+stage+" request is counted", func() bool {
				return counter(t, s, "penstock_aborts_total", "stage", stage, "outcome", "canceled") == 1
			})
			eventually(t, "the message was discarded", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.discarded) == 1 && (stage == "queued") == (len(s.canceled) == 0)
			})
		}
	})
}

func TestSlowReader(t *testing.T) {
	protocols(t, func(t *testing.T, c *http.Client) {
		s := newStage(t, func(cfg *Config, _ *Deps) { cfg.ClientBuffer = 64 << 10 }).serve()
		big := "data: " + strings.Repeat("x", 64<<10) + "\n\n"
		waits, sent := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(sent)
			n := s.start()
			n.first(chunk1)
			<-waits
			for range 1000 { // more than all buffers on the way
				n.send(response.Chunk, big)
			}
		}()
		resp, err := s.do(t.Context(), c, streamBody) // and does not read
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		close(waits)
		<-sent // a writer never waits for the client
		eventually(t, "the client is cut off", func() bool { return strings.Contains(s.log.String(), "status=499 outcome=aborted reason=client_slow") })
		eventually(t, "no request is open", func() bool { return s.g.open.Load() == 0 })
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Errorf("the cut answer ended cleanly: it looks like success")
		}
	})
}

// TestStuckWrite: little is waiting, so only the limit of one write ends it.
func TestStuckWrite(t *testing.T) {
	protocols(t, func(t *testing.T, c *http.Client) {
		s := newStage(t, func(cfg *Config, _ *Deps) { cfg.ClientBuffer = 1 << 30 })
		s.g.cfg.WriteLimit = 50 * time.Millisecond
		s.serve()
		go func() {
			n := s.start()
			n.first("data: " + strings.Repeat("x", 32<<20) + "\n\n")
		}()
		resp, err := s.do(t.Context(), c, streamBody)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		eventually(t, "the client is cut off", func() bool { return strings.Contains(s.log.String(), "reason=client_slow") })
	})
}

// TestConnectionIsReused: limits set for one request do not reach the next.
func TestConnectionIsReused(t *testing.T) {
	protocols(t, func(t *testing.T, c *http.Client) {
		s := newStage(t, nil)
		s.g.cfg.WriteLimit = 20 * time.Millisecond
		s.serve()
		for range 3 {
			go func() {
				n := s.start()
				n.first(chunk1)
				<-time.After(30 * time.Millisecond)
				n.send(response.Chunk, doneEvent)
				n.done("")
			}()
			resp, err := s.do(t.Context(), c, streamBody)
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, resp.Body); got != chunk1+doneEvent {
				t.Errorf("body = %q", got)
			}
			resp.Body.Close()
			<-time.After(30 * time.Millisecond)
		}
	})
}

func TestDrain(t *testing.T) {
	s := newStage(t, nil).serve()
	if ok, why := s.g.Ready(); !ok {
		eventually(t, "ready", func() bool { ok, why = s.g.Ready(); return ok })
		_ = why
	}
	answer := make(chan string, 1)
	go func() {
		resp, err := s.do(t.Context(), http.DefaultClient, streamBody)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answer <- string(b)
	}()
	n := s.start()
	s.stop()
	eventually(t, "not ready", func() bool { ok, why := s.g.Ready(); return !ok && why == "draining" })
	resp := s.post(streamBody)
	if message, _, code := errorOf(t, readAll(t, resp.Body)); resp.StatusCode != 503 || code != "draining" {
		t.Errorf("a new request got %d %q, want 503 draining", resp.StatusCode, message)
	}
	if resp, err := http.Get(s.url + "/health"); err != nil || resp.StatusCode != 503 {
		t.Errorf("/health = %v, %v, want 503", resp, err)
	} else {
		resp.Body.Close()
	}
	n.first(chunk1)
	n.send(response.Chunk, doneEvent)
	n.done("")
	if got := <-answer; got != chunk1+doneEvent {
		t.Errorf("the open request got %q, want its whole answer", got)
	}
	if err := <-s.served; err != nil {
		t.Errorf("Serve = %v", err)
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://")); err == nil {
		t.Error("the port still answers after Serve has returned")
	}
}

func TestDrainCuts(t *testing.T) {
	protocols(t, func(t *testing.T, c *http.Client) {
		s := newStage(t, func(cfg *Config, _ *Deps) { cfg.Grace = 20 * time.Millisecond }).serve()
		answers := make(chan string, 2)
		for _, body := range []string{streamBody, plainBody} {
			go func() {
				resp, err := s.do(context.Background(), c, body)
				if err != nil {
					answers <- err.Error()
					return
				}
				defer resp.Body.Close()
				b, _ := io.ReadAll(resp.Body)
				answers <- fmt.Sprintf("%d %s", resp.StatusCode, b)
			}()
			if n := s.start(); n.m.Stream {
				n.first(chunk1)
				eventually(t, "bytes are out", func() bool { return counter(t, s, "penstock_open_requests") == 1 })
			}
		}
		s.stop()
		all := <-answers + <-answers
		for _, want := range []string{"503 {\"error\":{\"message\":\"This gateway is shutting down.", chunk1 + `data: {"error":`, doneEvent} {
			if !strings.Contains(all, want) {
				t.Errorf("answers %q, want %q in them", all, want)
			}
		}
		if err := <-s.served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}
