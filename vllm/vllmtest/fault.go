package vllmtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"penstock/vllm/simengine"
)

// Fault is something wrong with the engine. Faults combine.
type Fault uint64

// Faults of the engine and its answers, then those of its metrics page.
const (
	Hung       Fault = 1 << iota // no step ends, no gauge moves, streams are silent; /health is 200
	Asleep                       // engine_sleep_state says weights_offloaded, no step
	EngineDead                   // the engine's process is gone, the API answers 500; ends with Restart only
	Busy                         // vLLM's own cap: 503
	BusyLate                     // the same, but a stream gets 200 and then an error event
	ErrorFirst                   // a stream gets 200 and an error event 500; others a plain 500
	ErrorMid                     // a stream gets an error event and [DONE] after BreakAfter events
	Cut                          // the connection is cut after BreakAfter events, or in half of a plain answer
	Draining                     // 500 as vLLM gives it after SIGTERM with a shutdown timeout

	MetricsError     // HTTP 500
	MetricsEmpty     // 200 without a byte
	MetricsGarbage   // 200 with something that is no exposition
	MetricsTruncated // 200, the page ends in the middle of a line
	MetricsCut       // the connection is cut in the middle of the page
	KVMissing        // no KV usage on the page
	LoadMissing      // no running and waiting on the page
	KVNaN            // its value is NaN
	KVInf            // +Inf
	KVNegative       // -0.25
	KVOver           // 1.75
	FilterIgnored    // /metrics/?name[]= gives the full page
	FilterEmpty      // /metrics/?name[]= gives 200 without a byte, as with two API servers
)

// Break switches faults on.
func (e *Engine) Break(f Fault) {
	e.faults.Or(uint64(f))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.apply()
}

// Mend switches faults off.
func (e *Engine) Mend(f Fault) {
	e.faults.And(^uint64(f))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.apply()
}

// apply tells the server about the faults that are its own. Called with mu held.
func (e *Engine) apply() {
	e.server.Freeze(e.has(Hung))
	level := 0
	if e.has(Asleep) {
		level = 1
	}
	e.server.Sleep(level)
	if e.has(EngineDead) {
		e.server.Fail()
	}
}

func (e *Engine) has(f Fault) bool { return Fault(e.faults.Load())&f != 0 }

// BreakAfter sets how many events a stream gets before ErrorMid and Cut act, 3 otherwise.
func (e *Engine) BreakAfter(events int) { e.eventsToBreak.Store(int64(events)) }

// SlowAnswers delays every answer to a POST from now on.
func (e *Engine) SlowAnswers(d time.Duration) { e.delay.Store(int64(d)) }

// SlowMetrics delays every metrics page from now on.
func (e *Engine) SlowMetrics(d time.Duration) { e.metricsDelay.Store(int64(d)) }

const (
	messageDead     = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	messageBusy     = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
	messageDraining = "cannot schedule new futures after shutdown"
)

// broken wraps a server's handler in what is wrong with it.
func (e *Engine) broken(server *simengine.Server) http.Handler {
	sound := server.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/metrics"):
			e.scrapes.Add(1)
			if wait(r, time.Duration(e.metricsDelay.Load())) {
				e.metrics(w, r, sound)
			}
		case r.Method == http.MethodPost:
			e.requests.Add(1)
			if delay := time.Duration(e.delay.Load()); delay > 0 {
				// Only once the body is read does the server notice a client that goes.
				body, err := io.ReadAll(r.Body)
				if err != nil || !wait(r, delay) {
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			e.generate(w, r, sound)
		default:
			sound.ServeHTTP(w, r)
		}
	})
}

// wait returns false if the client went away first.
func wait(r *http.Request, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.Context().Done():
		return false
	case <-t.C:
		return true
	}
}

func (e *Engine) generate(w http.ResponseWriter, r *http.Request, sound http.Handler) {
	switch {
	case e.has(Busy):
		plainError(w, http.StatusServiceUnavailable, "Service Unavailable", messageBusy)
	case e.has(Draining):
		plainError(w, http.StatusInternalServerError, "InternalServerError", messageDraining)
	case e.has(BusyLate):
		firstError(w, r, http.StatusServiceUnavailable, "Service Unavailable", messageBusy)
	case e.has(ErrorFirst):
		firstError(w, r, http.StatusInternalServerError, "InternalServerError", messageDead)
	case e.has(ErrorMid | Cut):
		b := &breaking{ResponseWriter: w, left: int(e.eventsToBreak.Load()), cut: e.has(Cut)}
		sound.ServeHTTP(b, r)
		if b.broke && b.cut {
			panic(http.ErrAbortHandler) // closes the connection without an end
		}
	default:
		sound.ServeHTTP(w, r)
	}
}

// firstError answers with an error that a stream learns of only after its 200.
func firstError(w http.ResponseWriter, r *http.Request, status int, kind, message string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	if !gjson.GetBytes(body, "stream").Bool() {
		plainError(w, status, kind, message)
		return
	}
	h := w.Header()
	h.Set("Server", "uvicorn")
	h.Set("Vary", "Origin")
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	_, _ = w.Write(errorFrame(status, kind, message))
}

// errorFrame is an error as a stream's last events, spaced as Python's json spaces.
func errorFrame(status int, kind, message string) []byte {
	return fmt.Appendf(nil, `data: {"error": {"message": %q, "type": %q, "param": null, "code": %d}}`+"\n\ndata: [DONE]\n\n", message, kind, status)
}

func plainError(w http.ResponseWriter, status int, kind, message string) {
	h := w.Header()
	h.Set("Server", "uvicorn")
	h.Set("Vary", "Origin")
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":{"message":%q,"type":%q,"param":null,"code":%d}}`, message, kind, status)
}

var errBroken = errors.New("vllmtest: broken on purpose")

// breaking lets so many events of a stream through, then cuts it or ends it with an
// error event, and fails every further write, so that the server below it aborts
// the request. Of a plain answer a cut lets half through.
type breaking struct {
	http.ResponseWriter
	left  int
	cut   bool
	broke bool
}

// Unwrap gives http.ResponseController its Flush.
func (b *breaking) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *breaking) Write(p []byte) (int, error) {
	if b.broke {
		return 0, errBroken
	}
	if !strings.HasPrefix(b.Header().Get("Content-Type"), "text/event-stream") {
		if !b.cut {
			return b.ResponseWriter.Write(p)
		}
		b.broke = true
		_, _ = b.ResponseWriter.Write(p[:len(p)/2])
		return 0, errors.Join(errBroken, http.NewResponseController(b.ResponseWriter).Flush())
	}
	through := 0
	for b.left > 0 && through < len(p) {
		n := bytes.Index(p[through:], []byte("\n\n"))
		if n < 0 {
			break
		}
		through += n + len("\n\n")
		b.left--
	}
	if b.left > 0 {
		return b.ResponseWriter.Write(p)
	}
	b.broke = true
	_, _ = b.ResponseWriter.Write(p[:through])
	if !b.cut {
		_, _ = b.ResponseWriter.Write(errorFrame(http.StatusInternalServerError, "InternalServerError", messageDead))
	}
	return 0, errors.Join(errBroken, http.NewResponseController(b.ResponseWriter).Flush())
}
