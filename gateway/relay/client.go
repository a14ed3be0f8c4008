// Package relay brings what comes for a request to its client, as it comes: the stream's
// status, the engine's bytes, pings in a silence, each write within its time. It knows
// when one of a request's times is up, and leaves it to its caller what that means.
package relay

import (
	"net/http"
	"strconv"
	"time"

	"penstock/gateway/inbox"
)

// StatusGone is the status of a request whose client is gone, for the log: hardly anybody
// is there to read it.
const StatusGone = 499

// StreamType is the Content-Type of a stream.
const StreamType = "text/event-stream; charset=utf-8"

// Client is the other end of one request. Only the handler's goroutine calls it, but for
// Unhang.
type Client struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration     // longest a single write may take
	meta  func(http.Header) // sets the headers that say how the answer came about
	in    *inbox.Inbox      // of the lane where the request is; nil = of none yet
	guard *time.Timer       // of a write; nil = none since Await

	sent  bool      // status and headers are out
	done  bool      // [DONE] is out
	wrote time.Time // last byte written; zero = none
}

// NewClient makes the client behind w, to whom a single write may take limit. meta adds
// to the headers of an answer when they go out.
func NewClient(w http.ResponseWriter, rc *http.ResponseController, limit time.Duration, meta func(http.Header)) *Client {
	return &Client{w: w, rc: rc, limit: limit, meta: meta}
}

// Await makes in the inbox that learns of it when a write takes too long.
func (c *Client) Await(in *inbox.Inbox) { c.in, c.guard = in, nil }

// Sent reports whether the status of a stream is out.
func (c *Client) Sent() bool { return c.sent }

// Done reports whether the engine's [DONE] is out: a client reads nothing after it.
func (c *Client) Done() bool { return c.done }

// Stream writes b at once, the status first where it is not out yet. False: the client
// is gone or does not read.
func (c *Client) Stream(b []byte) bool {
	if !c.sent {
		c.sent = true
		h := c.w.Header()
		h["Content-Type"] = []string{StreamType}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
		c.meta(h)
		c.w.WriteHeader(http.StatusOK)
	}
	c.bound()
	_, err := c.w.Write(b)
	if err == nil {
		err = c.rc.Flush()
	}
	c.guard.Stop()
	c.wrote = time.Now()
	return err == nil
}

// Answer writes a plain answer of JSON, whole; status 0 = 200. False: as Stream.
func (c *Client) Answer(status int, body []byte) bool {
	h := c.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.meta(h)
	c.bound()
	if status > 0 {
		c.w.WriteHeader(status)
	}
	_, err := c.w.Write(body)
	c.guard.Stop()
	return err == nil
}

// bound lets the inbox cut the client off where a write takes too long.
func (c *Client) bound() {
	if c.guard == nil {
		c.guard = time.AfterFunc(c.limit, c.in.TimedOut)
		return
	}
	c.guard.Reset(c.limit)
}

// Unhang makes a write that hangs return. Called with the inbox's lock held, by any
// goroutine, never after the handler has returned.
func (c *Client) Unhang() { _ = c.rc.SetWriteDeadline(time.Unix(1, 0)) }

// BoundTail limits what net/http still writes when the handler has returned. A client
// that was cut off must not get it: a proper end without [DONE] would look like success.
func (c *Client) BoundTail() {
	if c.in == nil || !c.in.WasCut() {
		_ = c.rc.SetWriteDeadline(time.Now().Add(c.limit))
	}
}

// HangUp makes sure that whoever is left at the other end (a client may have closed only
// its sending half) does not take what it got for a whole answer.
func (c *Client) HangUp() {
	if c.sent {
		c.in.TimedOut()
	} else {
		c.w.WriteHeader(StatusGone)
	}
}
