package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/fleet"
	"penstock/reason"
	"penstock/registry"
	"penstock/response"
)

// TestDebugState holds the page while requests are at every stage and after some
// have failed.
func TestDebugState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(_ *Config, d *Deps) {
			d.Cause = func(node string) string { return map[string]string{"n2": "blind 12 s: connection refused"}[node] }
		})
		for _, e := range []registry.Engine{
			{Node: "n2", Models: []string{"q", "r"}, Pool: "a100", State: reason.Blind},
			{Node: "n3", State: reason.Starting},
		} {
			if err := s.records.PutEngine(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		s.ask(`{"model":"r","prompt":"secret"}`, "X-Request-Id", "mine")
		s.ask(`{"model":"q","prompt":"secret"`)
		_, _, finished := s.ask(streamBody, "X-Request-Id", "lost")
		n := s.start()
		n.first(chunk1)
		time.Sleep(1500 * time.Millisecond)
		n.finish(response.Event{Kind: response.Failed, Reason: reason.UpstreamLost})
		<-finished
		_, gone, finished := s.ask(streamBody)
		gone()
		<-finished
		<-s.queued

		for range 2 {
			s.ask(plainBody)
			<-s.queued
		}
		s.ask(streamBody)
		s.start().first(chunk1)
		s.ask(plainBody)
		n = s.start()
		if err := n.w.Append(response.Event{Kind: response.Heartbeat}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(500 * time.Millisecond)
		page, err := json.MarshalIndent(s.g.DebugState(), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(page), "secret") {
			t.Error("a prompt is on the page")
		}
		text := regexp.MustCompile(`[0-9a-f]{32}`).ReplaceAllString(string(page), "ID")
		golden(t, "state.golden", regexp.MustCompile(`"at": ".*"`).ReplaceAllString(text, `"at": "T"`)+"\n")
		time.Sleep(time.Hour) // all of them end
	})
}

// TestRefusalHasItsNumbers: the ones the door decided by.
func TestRefusalHasItsNumbers(t *testing.T) {
	stub := &stub{
		admission: registry.Admission{Reason: reason.Overloaded, Ahead: 37, Wait: 12 * time.Second, RetryAfter: 10 * time.Second},
		engines:   []registry.Engine{{Models: []string{"q"}, State: reason.OK, Seen: time.Now()}},
	}
	s := newStage(t, func(_ *Config, d *Deps) {
		d.Records, d.Directory, d.Rows = stub, stub, func() []fleet.Row { return nil }
	})
	s.serve()
	s.post(streamBody)
	if got := s.g.DebugState().Refused; len(got) != 1 || got[0].Ahead != 37 || got[0].Wait != 12 || got[0].Limit != 2 || got[0].Status != 429 {
		t.Errorf("refused: %+v, want 37 ahead, 12 s predicted, 2 s allowed", got)
	}
}

// TestDebugStateWithoutStore: what is known from before is shown, and why no more.
func TestDebugStateWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stub := &stub{dirErr: errors.New("dial: connection refused")}
		s := newStage(t, func(_ *Config, d *Deps) {
			d.Directory = stub
			d.OpenMailbox = func(string, func(response.Event)) (func(), error) { return nil, errors.New("no mailbox") }
		})
		if got := s.g.DebugState(); got.Directory.Age != -1 || got.Directory.Error != "dial: connection refused" || got.Mailbox.State != "closed" || len(got.Engines) != 1 {
			t.Errorf("state: %+v, want a directory never read, its error, and the row", got)
		}
		for i := range 2 * shown {
			stub.engines = append(stub.engines, registry.Engine{Node: fmt.Sprintf("e%03d", i), Models: []string{fmt.Sprint(i)}})
		}
		stub.dirErr = nil
		if _, err := s.g.directory.Read(context.Background(), 0); err != nil {
			t.Fatal(err)
		}
		stub.dirErr = errors.New("away")
		time.Sleep(time.Minute)
		s.ask(streamBody)
		got := s.g.DebugState()
		if got.Directory != (Directory{Age: 60, Error: "away", MoreModels: shown, MoreEngines: shown + 1}) || len(got.Models) != shown || len(got.Engines) != shown {
			t.Errorf("directory: %+v with %d models and %d engines, want the old one, bounded", got.Directory, len(got.Models), len(got.Engines))
		}
		if got.Mailbox.State != "no mailbox" {
			t.Errorf("mailbox: %q, want why it is not open", got.Mailbox.State)
		}
	})
}
