package gateway

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/gateway/relay"
	"penstock/queue"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

func TestHeadersAreHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		rec, _, finished := s.ask(streamBody, "X-Penstock-Start-Timeout-Ms", "120000")
		m := s.message()
		time.Sleep(45*time.Second - time.Millisecond)
		synctest.Wait()
		if rec.code() != 0 {
			t.Fatalf("status %d is out before 45 s", rec.code())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if rec.code() != 200 || rec.body() != "" || rec.header.Get("Content-Type") != relay.StreamType {
			t.Fatalf("after 45 s: status %d, body %q, type %q, want 200 with an empty stream", rec.code(), rec.body(), rec.header.Get("Content-Type"))
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := rec.body(); got != ": ping\n\n: ping\n\n" {
			t.Fatalf("30 s later: %q, want two pings", got)
		}
		n := s.claim(m)
		n.first(chunk1)
		n.send(response.Chunk, doneEvent)
		n.done("")
		<-finished
		if got, want := rec.body(), ": ping\n\n: ping\n\n"+chunk1+doneEvent; got != want {
			t.Errorf("body = %q, want %q", got, want)
		}
		if got := rec.header.Get("X-Penstock-Node"); got != "" {
			t.Errorf("x-penstock-node = %q after the status was out, want none", got)
		}
	})
}

func TestRefusalAfterHeaders(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		rec, _, finished := s.ask(streamBody, "X-Penstock-Start-Timeout-Ms", "50000")
		s.message()
		<-finished
		want := `data: {"error":{"message":"No engine for model 'q' had room within the start deadline of 50 s. Please try again in 5 seconds.","type":"timeout_error","param":null,"code":"queue_deadline_exceeded"}}` + "\n\n" + doneEvent
		if got := unspread(rec.body()); got != want || rec.code() != 200 {
			t.Errorf("got %d %q, want 200 %q", rec.code(), got, want)
		}
	})
}

func TestEngineRefusalAfterHeaders(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		rec, _, finished := s.ask(streamBody, "X-Penstock-Start-Timeout-Ms", "60000")
		n := s.start()
		n.send(response.Heartbeat, "")
		time.Sleep(46 * time.Second)
		n.finish(response.Event{Kind: response.Failed, Status: 400, Reason: reason.EngineRefused, Payload: []byte("{\n \"error\": {\"message\": \"no\"}\n}")})
		<-finished
		if got, want := rec.body(), "data: {\"error\":{\"message\":\"no\"}}\n\n"+doneEvent; got != want {
			t.Errorf("body = %q, want %q", got, want)
		}
	})
}

func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			every time.Duration
			want  string
		}{
			{15 * time.Second, chunk1 + ": ping\n\n: ping\n\n" + chunk2 + doneEvent},
			{0, chunk1 + chunk2 + doneEvent},
		} {
			s := newStage(t, func(cfg *Config, _ *Deps) { cfg.PingEvery = c.every })
			rec, _, finished := s.ask(streamBody)
			n := s.start()
			time.Sleep(time.Second)
			n.first(chunk1)
			time.Sleep(44 * time.Second)
			n.send(response.Chunk, chunk2)
			n.send(response.Chunk, doneEvent)
			n.done("")
			<-finished
			if got := rec.body(); got != c.want {
				t.Errorf("ping every %s: body = %q, want %q", c.every, got, c.want)
			}
			if c.every > 0 && (len(rec.at) < 3 || rec.at[1] != 16*time.Second || rec.at[2] != 31*time.Second) {
				t.Errorf("flushes at %v, want pings at 16 s and 31 s", rec.at)
			}
		}
	})
}

func TestStartDeadline(t *testing.T) {
	for _, c := range []struct {
		name, header, noRetry string
		after                 time.Duration
	}{
		{"default", "", "", 30 * time.Second},
		{"named by the client", "2000", "false", 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *stage) {
				begun := time.Now()
				rec, _, finished := s.ask(plainBody, "X-Penstock-Start-Timeout-Ms", c.header)
				m := s.message()
				<-finished
				if took := time.Since(begun); took != c.after || rec.code() != 504 {
					t.Errorf("got %d after %s, want 504 after %s", rec.code(), took, c.after)
				}
				if got := rec.header.Get("X-Should-Retry"); got != c.noRetry {
					t.Errorf("x-should-retry = %q, want %q", got, c.noRetry)
				}
				if claim, _ := s.records.Claim(t.Context(), registry.Start{ID: m.ID, Attempt: "a", Owner: "n1", Lane: m.Lane, Deadline: m.Deadline}); claim.Action != registry.Ack {
					t.Errorf("a later claim = %+v, want ack", claim)
				}
				if len(s.discarded) != 1 {
					t.Errorf("discarded %v, want the message", s.discarded)
				}
			})
		})
	}
}

func TestStartDeadlineLeavesARunningOneAlone(t *testing.T) {
	for _, body := range []string{streamBody, plainBody} {
		inBubble(t, func(t *testing.T, s *stage) {
			rec, _, finished := s.ask(body)
			n := s.start()
			for range 11 {
				time.Sleep(registry.RenewEvery)
				if _, err := s.records.Renew(t.Context(), "n1", []registry.Ref{{ID: n.id, Attempt: n.att}}); err != nil {
					t.Fatal(err)
				}
			}
			if body == streamBody {
				n.first(chunk1 + doneEvent)
			}
			n.done("")
			<-finished
			if rec.code() != 200 || len(s.canceled)+len(s.discarded) > 0 {
				t.Errorf("status %d, canceled %v, discarded %v, want 200 and no cancel", rec.code(), s.canceled, s.discarded)
			}
		})
	}
}

func TestSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		begun := time.Now()
		rec, _, finished := s.ask(plainBody)
		n := s.start()
		time.Sleep(10 * time.Second)
		n.send(response.Heartbeat, "")
		<-finished
		if took := time.Since(begun); took != 130*time.Second || rec.code() != 504 || rec.header.Get("X-Penstock-Reason") != "stalled" {
			t.Errorf("got %d %q after %s, want 504 stalled after 130 s", rec.code(), rec.header.Get("X-Penstock-Reason"), took)
		}
		if len(s.canceled) != 1 {
			t.Errorf("owner told %v, want one cancel", s.canceled)
		}
	})
}

func TestSilenceWithPings(t *testing.T) {
	inBubble(t, func(t *testing.T, s *stage) {
		rec, _, finished := s.ask(streamBody)
		s.start().first(chunk1)
		<-finished
		if got := rec.body(); strings.Count(got, ": ping") != 7 || !strings.HasSuffix(got, doneEvent) || !strings.Contains(got, `"code":"stalled"`) {
			t.Errorf("body = %q, want 7 pings, an error and [DONE]", got)
		}
	})
}

// TestStoreAwayAtDeadline: whether it runs is not known, so it waits for a
// heartbeat's time before it gives up.
func TestStoreAwayAtDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records *awayRecords
		s := newStage(t, func(_ *Config, d *Deps) {
			records = &awayRecords{Records: d.Records}
			d.Records = records
		})
		begun := time.Now()
		rec, _, finished := s.ask(plainBody)
		s.message()
		<-finished
		if took := time.Since(begun); rec.code() != 504 || took != 45*time.Second || records.calls < 10 {
			t.Errorf("got %d after %s and %d cancels, want 504 after 45 s, asking again meanwhile", rec.code(), took, records.calls)
		}
	})
}

type awayRecords struct {
	registry.Records
	calls int
}

func (a *awayRecords) Cancel(context.Context, string, bool) (registry.Canceled, error) {
	a.calls++
	return registry.Canceled{}, registry.ErrAway
}

func TestClientGone(t *testing.T) {
	for _, c := range []struct {
		stage string
		upTo  func(s *stage) *queue.Message
	}{
		{"queued", func(s *stage) *queue.Message { return s.message() }},
		{"running", func(s *stage) *queue.Message { return s.start().m }},
		{"streaming", func(s *stage) *queue.Message {
			n := s.start()
			n.first(chunk1)
			return n.m
		}},
	} {
		t.Run(c.stage, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var direct []string
				s := newStage(t, func(_ *Config, d *Deps) {
					d.Direct = func(address, id string) { direct = append(direct, address+" "+id) }
				})
				_, gone, finished := s.ask(streamBody)
				m := c.upTo(s)
				synctest.Wait()
				gone()
				<-finished
				if got := counter(t, s, "penstock_aborts_total", "stage", c.stage, "outcome", "canceled"); got != 1 {
					t.Errorf("aborts{%s,canceled} = %v, want 1", c.stage, got)
				}
				if c.stage != "queued" && (len(s.canceled) != 1 || s.canceled[0] != m.ID) {
					t.Errorf("owner told of %v, want %s", s.canceled, m.ID)
				}
				want := []string{"n1:4781 " + m.ID}
				if c.stage == "queued" {
					want = nil
				}
				if !slices.Equal(direct, want) {
					t.Errorf("told directly: %q, want %q", direct, want)
				}
				if log := s.log.String(); !strings.Contains(log, "status=499 outcome=aborted reason=client_gone") {
					t.Errorf("log = %q, want a 499", log)
				}
			})
		})
	}
}

// TestClientGoneStoreAway: who streams is known without the store.
func TestClientGoneStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var direct []string
		s := newStage(t, func(_ *Config, d *Deps) {
			d.Records = &awayRecords{Records: d.Records}
			d.Direct = func(address, id string) { direct = append(direct, address+" "+id) }
		})
		_, gone, finished := s.ask(streamBody)
		n := s.start()
		n.first(chunk1)
		synctest.Wait()
		gone()
		<-finished
		if want := []string{"n1:4781 " + n.id}; !slices.Equal(direct, want) {
			t.Errorf("told directly: %q, want %q", direct, want)
		}
	})
}
