package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"penstock/reason"
)

const (
	// idleLimit is shorter than the 5 s after which vLLM's server (uvicorn)
	// closes an idle connection, so that we close first and never write into one
	// that is just going away.
	idleLimit = 4 * time.Second

	// idlePerEngine bounds pooled connections; those in use are not bounded here:
	// the scheduler decides how many requests run.
	idlePerEngine = 1024

	controlBytes = 1 << 20 // of /v1/models and /version
)

// Client talks to one engine. All methods may be called at once.
type Client struct {
	cfg       Config
	base      string // of request URLs
	transport *http.Transport
	usage     atomic.Int32 // what the engine said to usage options: usageUnknown, usageRefused, usageAccepted
}

const (
	usageUnknown int32 = iota
	usageRefused
	usageAccepted
)

// New checks the config. It connects to nothing; Close ends the pooled
// connections of later calls.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base, socket, err := cfg.target()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: cfg.DialTimeout}
	return newClient(cfg, base, func(ctx context.Context, network, addr string) (net.Conn, error) {
		if socket != "" {
			network, addr = "unix", socket
		}
		return dialer.DialContext(ctx, network, addr)
	}), nil
}

// newClient is New with the dial as a seam for tests.
//
// HTTP/1.1 only, with one connection per running request, so that closing it
// stops that request and no other. No proxy and no compression: neither may sit
// between us and the bytes.
func newClient(cfg Config, base string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &Client{cfg: cfg, base: base, transport: &http.Transport{
		DialContext:         dial,
		Protocols:           protocols,
		DisableCompression:  true,
		MaxIdleConnsPerHost: idlePerEngine,
		IdleConnTimeout:     idleLimit,
	}}
}

// Close ends idle connections; running requests go on until their own end.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Do runs a request to its complete answer. There is no stall limit, since an
// engine sends nothing before the end: ctx is the limit, and ending it closes
// the connection and so stops the engine's work. Every error is an *Error.
func (c *Client) Do(ctx context.Context, req Request) (Answer, error) {
	resp, err := c.post(ctx, req, req.Body)
	if err != nil {
		return Answer{}, c.broken(ctx, req.Path, reason.EngineDown, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return Answer{}, c.refused(ctx, req.Path, resp)
	}
	body, err := readBounded(resp, c.cfg.MaxAnswer)
	switch {
	case errors.Is(err, errTooLong):
		return Answer{}, c.broken(ctx, req.Path, reason.UpstreamLost, err)
	case err != nil:
		return Answer{}, c.broken(ctx, req.Path, reason.EngineDown, err)
	}
	answer := Answer{Status: resp.StatusCode, Body: body}
	if said := gjson.Get(text(body), "usage"); said.IsObject() {
		answer.Usage = parseUsage(said.Raw)
	}
	return answer, nil
}

// Models lists what the engine serves. It answers also while the engine behind
// it hangs: it is no sign of health. ctx bounds the wait.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := c.get(ctx, "/v1/models", &list); err != nil {
		return nil, err
	}
	models := make([]Model, len(list.Data))
	for i, m := range list.Data {
		models[i] = Model(m)
	}
	return models, nil
}

// Version is the engine's own version, such as "0.32.0". ctx bounds the wait.
func (c *Client) Version(ctx context.Context) (string, error) {
	var said struct {
		Version string `json:"version"`
	}
	err := c.get(ctx, "/version", &said)
	return said.Version, err
}

// Dead asks /health whether the engine's process is gone while its HTTP side still
// answers: vLLM says 503 then, 500 before 0.11. A hung engine is not dead by this,
// and one that cannot be reached gives an error. ctx bounds the wait.
func (c *Client) Dead(ctx context.Context) (bool, error) {
	const path = "/health"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return false, c.broken(ctx, path, reason.EngineDown, err)
	}
	c.authorize(req)
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return false, c.broken(ctx, path, reason.EngineDown, err)
	}
	defer resp.Body.Close()
	_, err = readBounded(resp, controlBytes) // so that the connection can be used again
	if err != nil && !errors.Is(err, errTooLong) {
		return false, c.broken(ctx, path, reason.EngineDown, err)
	}
	return resp.StatusCode/100 == 5, nil
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return c.broken(ctx, path, reason.EngineDown, err)
	}
	c.authorize(req)
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return c.broken(ctx, path, reason.EngineDown, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c.refused(ctx, path, resp)
	}
	body, err := readBounded(resp, controlBytes)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return c.broken(ctx, path, reason.EngineDown, err)
	}
	return nil
}

// post sends one attempt and returns with the response's header.
//
// net/http repeats a POST by itself only if not one byte of it was written. It
// also reports a pooled connection that had closed before the request began; that
// is repeated here. A connection that breaks later, before any answer, is
// ambiguous: the engine may have begun under this id, and an id must not be used
// twice, so the caller gets the error and starts a new attempt.
func (c *Client) post(ctx context.Context, r Request, body []byte) (*http.Response, error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+r.Path, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		c.authorize(req)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", r.Attempt)
		if r.Traceparent != "" && len(r.Traceparent) <= 128 && !strings.ContainsFunc(r.Traceparent, unprintable) {
			req.Header.Set("traceparent", r.Traceparent)
		}
		// RoundTrip and not http.Client: no redirects, no cookies.
		resp, err := c.transport.RoundTrip(req)
		// net/http does not export this error. Each such connection leaves the pool,
		// so the loop ends.
		if err != nil && err.Error() == "http: server closed idle connection" {
			continue
		}
		return resp, err
	}
}

// authorize adds the engine's key; the client's own key never gets this far.
func (c *Client) authorize(req *http.Request) {
	req.Header.Set("User-Agent", "penstock")
	if c.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.APIKey)
	}
}

var errTooLong = errors.New("answer is longer than the limit")

// readBounded reads a whole body of at most limit bytes.
func readBounded(resp *http.Response, limit int) ([]byte, error) {
	var body bytes.Buffer
	if n := resp.ContentLength; n > 0 && n <= int64(limit) {
		body.Grow(int(n) + bytes.MinRead)
	}
	n, err := body.ReadFrom(io.LimitReader(resp.Body, int64(limit)+1))
	if err == nil && n > int64(limit) {
		err = fmt.Errorf("%w of %d bytes", errTooLong, limit)
	}
	return body.Bytes(), err
}
