//go:build e2e

package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// ask is one request of a client.
type ask struct {
	model, prompt string
	tokens        int // it gets exactly so many
	stream        bool
	key           string
	header        http.Header
}

// patient makes the door take what is likely to start within half a minute.
var patient = http.Header{"X-Penstock-Start-Timeout-Ms": {"30000"}}

func (a *ask) body(model string) string {
	return fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"ignore_eos":true,"temperature":0,"messages":[{"role":"user","content":%q}]}`,
		model, a.stream, a.tokens, a.prompt)
}

// reply is all that a client saw of its request.
type reply struct {
	ask        ask
	gateway    *part
	died       bool // the gateway's process ended while the client waited, or was not there
	began      time.Time
	first      time.Duration // to the first byte of the answer's body
	took       time.Duration
	status     int
	header     http.Header
	text       string
	code       string // of the error, in a body or a stream
	finish     string
	chunks     int // events with text
	beginnings int // events with a role
	dones      int
	late       int // bytes after [DONE]
	broken     error
}

// patience is longer than any bound of the gateway on a request that ends as it should,
// beside what its tokens take.
const patience = 200 * time.Second

var client = &http.Client{Transport: &http.Transport{
	MaxIdleConnsPerHost: 256, DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
}}

// send asks a gateway and reads the answer to its end. onChunk, which may be nil, is
// called after each event with text.
func send(ctx context.Context, g *part, a ask, onChunk func(*reply)) *reply {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(a.tokens)*slowToken)
	defer cancel()
	r := &reply{ask: a, gateway: g, began: time.Now()}
	turn := g.turn()
	r.broken = r.exchange(ctx, g.url, a.body(a.model), onChunk)
	r.took = time.Since(r.began)
	r.died = !g.served(turn) || g.turn() != turn
	return r
}

func (r *reply) exchange(ctx context.Context, url, body string, onChunk func(*reply)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	for name, values := range r.ask.header {
		req.Header[name] = slices.Clone(values)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.ask.key)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	r.status, r.header = resp.StatusCode, resp.Header
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		whole, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		r.first = time.Since(r.began)
		return r.add(whole)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if r.first == 0 && len(line) > 0 {
			r.first = time.Since(r.began)
		}
		if r.dones > 0 {
			r.late += len(bytes.TrimSpace(line))
		}
		if data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: ")); ok {
			before := r.chunks
			if string(data) == "[DONE]" {
				r.dones++
			} else if err := r.add(data); err != nil {
				return err
			}
			if onChunk != nil && r.chunks > before {
				onChunk(r)
			}
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

type piece struct{ Role, Content string }

func (r *reply) add(doc []byte) error {
	var d struct {
		Choices []struct {
			Message, Delta piece
			Finish         string `json:"finish_reason"`
		}
		Error *struct{ Code any }
	}
	if err := json.Unmarshal(doc, &d); err != nil {
		return fmt.Errorf("%w in %q", err, doc)
	}
	if d.Error != nil {
		r.code = fmt.Sprint(d.Error.Code)
	}
	for _, c := range d.Choices {
		if c.Message.Role+c.Delta.Role != "" {
			r.beginnings++
		}
		if text := c.Message.Content + c.Delta.Content; text != "" {
			r.text += text
			r.chunks++
		}
		if c.Finish != "" {
			r.finish = c.Finish
		}
	}
	return nil
}

func (r *reply) node() string { return r.header.Get("X-Penstock-Node") }

// want asks the reference engine what the answer must be.
func (f *fleet) want(a ask) (string, error) {
	a.stream = false
	r := &reply{ask: a}
	if err := r.exchange(context.Background(), f.reference.url, a.body("reference"), nil); err != nil || r.status != http.StatusOK {
		return "", fmt.Errorf("reference engine: %d %w", r.status, err)
	}
	return r.text, nil
}

// Classes of outcomes; any other is "refused" or "cut short" with its code.
const (
	whole = "whole answer"
	died  = "its gateway died"
)

// judge names the outcome, which is the only one a client may have had, or says what
// is wrong with it.
func (f *fleet) judge(r *reply) (string, error) {
	if r.broken != nil {
		if r.died {
			return died, nil
		}
		return "", fmt.Errorf("%s: the connection broke after %v: %w", r.gateway.name, r.took, r.broken)
	}
	if r.status != http.StatusOK {
		if r.code == "" || r.header.Get("X-Penstock-Reason") == "" {
			return "", fmt.Errorf("status %d with code %q and reason %q", r.status, r.code, r.header.Get("X-Penstock-Reason"))
		}
		return fmt.Sprintf("refused: %d %s", r.status, r.code), nil
	}
	want, err := f.want(r.ask)
	if err != nil {
		return "", err
	}
	switch {
	case r.beginnings > 1:
		return "", fmt.Errorf("%d beginnings", r.beginnings)
	case r.late > 0:
		return "", fmt.Errorf("%d bytes after [DONE]", r.late)
	case r.ask.stream && r.dones != 1:
		return "", fmt.Errorf("%d [DONE] after %q, error %q", r.dones, r.text, r.code)
	case r.code != "" && strings.HasPrefix(want, r.text):
		return "cut short: " + r.code, nil
	case r.text != want:
		return "", fmt.Errorf("status 200, error %q, attempt %s on %s: got\n%q, want\n%q", r.code, r.header.Get("X-Penstock-Attempts"), r.node(), r.text, want)
	case r.finish != "length":
		return "", fmt.Errorf("finish reason %q", r.finish)
	}
	f.mu.Lock()
	f.answered++
	f.mu.Unlock()
	return whole, nil
}

// load sends requests at a steady rate until stopped.
type load struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
	mu     sync.Mutex
	done   []*reply
}

// startLoad makes the requests by make, one after the other, from both gateways, until
// the test's end at the latest.
func (f *fleet) startLoad(t *testing.T, rate float64, most int, make func(i int) ask) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{cancel: cancel}
	l.all.Go(func() {
		tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
		defer tick.Stop()
		for i := 0; i < most; i++ {
			a, g := make(i), f.gateways[i%len(f.gateways)]
			l.all.Go(func() {
				l.add(send(context.Background(), g, a, nil))
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

func (l *load) add(r *reply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, r)
}

// stop sends no more and waits for every outcome.
func (l *load) stop() []*reply {
	l.cancel()
	l.all.Wait()
	return l.done
}

// answeredAfter returns how long after at the first of those requests that began after
// it had its whole answer; 0 = none had.
func (l *load) answeredAfter(at time.Time, those func(*reply) bool) (least time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range slices.Backward(l.done) {
		if r.began.Before(at) || r.status != http.StatusOK || r.code != "" || r.broken != nil || !those(r) {
			continue
		}
		if took := r.began.Add(r.took).Sub(at); least == 0 || took < least {
			least = took
		}
	}
	return least
}

func anyOf(*reply) bool { return true }
