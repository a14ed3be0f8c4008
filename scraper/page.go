package scraper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// page is what the engine answered. body is valid until the next fetch.
type page struct {
	body        []byte
	openMetrics bool // by its content type: it must end in # EOF
}

// client reads pages over one kept connection, into one buffer that grows to the
// longest page seen, at most maxPage bytes.
type client struct {
	http     *http.Client
	full     *http.Request
	filtered *http.Request
	maxPage  int
	buf      []byte
}

// newClient expects a valid cfg. The filtered page is the same path with a slash
// behind it: the exact route ignores name[], the mount behind it honours it.
func newClient(cfg Config) *client {
	u, _ := cfg.pageURL()
	transport := &http.Transport{
		DisableCompression:     true, // the engine would compress on its event loop
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		DialContext:            (&net.Dialer{}).DialContext,
	}
	if u.Scheme == "unix" {
		socket := u.Path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
		u = &url.URL{Scheme: "http", Host: "localhost"}
	}
	full, filtered := *u, *u
	full.Path = strings.TrimSuffix(u.Path, "/") + "/metrics"
	filtered.Path = full.Path + "/"
	filtered.RawQuery = url.Values{"name[]": slices.Sorted(maps.Keys(byName))}.Encode()
	get := func(u *url.URL) *http.Request {
		return &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{
			"Accept":     {"text/plain;version=0.0.4"},
			"User-Agent": {"penstock"},
		}}
	}
	return &client{
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
		full: get(&full), filtered: get(&filtered), maxPage: cfg.MaxPage,
	}
}

// fetch reads one page within ctx's deadline. Its errors are *Error.
func (c *client) fetch(ctx context.Context, filtered bool) (page, error) {
	req := c.full
	if filtered {
		req = c.filtered
	}
	resp, err := c.http.Do(req.WithContext(ctx))
	if err != nil {
		return page{}, transportError(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return page{}, &Error{Problem: Status, Err: fmt.Errorf("%s answers %d", req.URL.Path, resp.StatusCode)}
	}
	if err := c.readBody(resp.Body); err != nil {
		return page{}, err
	}
	return page{
		body:        c.buf,
		openMetrics: strings.HasPrefix(resp.Header.Get("Content-Type"), "application/openmetrics-text"),
	}, nil
}

func (c *client) readBody(r io.Reader) error {
	c.buf = c.buf[:0]
	for {
		if len(c.buf) == cap(c.buf) {
			c.buf = append(make([]byte, 0, min(max(2*cap(c.buf), 64<<10), c.maxPage+1)), c.buf...)
		}
		n, err := r.Read(c.buf[len(c.buf):cap(c.buf)])
		c.buf = c.buf[:len(c.buf)+n]
		switch {
		case len(c.buf) > c.maxPage:
			return &Error{Problem: TooLarge, Err: fmt.Errorf("more than %d bytes", c.maxPage)}
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return transportError(err)
		}
	}
}

// transportError leaves out the page's address, which the log line has anyway and
// which names every metric where the page is filtered.
func transportError(err error) *Error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Problem: Timeout, Err: err}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Problem: Truncated, Err: err}
	}
	return &Error{Problem: Unreachable, Err: err}
}
