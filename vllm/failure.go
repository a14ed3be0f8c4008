package vllm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"penstock/reason"
)

const (
	refusalBytes = 1 << 20 // of an error answer that is passed on
	messageBytes = 4 << 10 // of the engine's message in our error
)

// shutdownMessage is what vLLM says, with status 500, to a new request while it
// drains (`--shutdown-timeout` above 0).
const shutdownMessage = "cannot schedule new futures after shutdown"

var errStalled = errors.New("engine sent no event for the stall limit")

// broken is an attempt that ended without an answer from the engine. A context
// that ended explains every other error.
func (c *Client) broken(ctx context.Context, path string, why reason.Reason, err error) *Error {
	if cause := context.Cause(ctx); cause != nil {
		why, err = reason.Aborted, cause
		if errors.Is(cause, errStalled) {
			why, err = reason.Stalled, fmt.Errorf("%w of %v", cause, c.cfg.StallLimit)
		}
	}
	return &Error{Reason: why, Err: fmt.Errorf("%s%s: %w", c.cfg.URL, path, err)}
}

// refused is an answer with an error status. The body is read to its end, so
// that the connection can be used again.
func (c *Client) refused(ctx context.Context, path string, resp *http.Response) *Error {
	body, err := readBounded(resp, refusalBytes)
	if err != nil && !errors.Is(err, errTooLong) {
		return c.broken(ctx, path, reason.EngineDown, fmt.Errorf("status %d: %w", resp.StatusCode, err))
	}
	e := c.said(path, resp.StatusCode, body)
	if err != nil {
		e.Body = nil // half an answer is no answer
	}
	return e
}

// said is an error the engine gave in its own words: an answer's status and body,
// or an error event's code and data.
func (c *Client) said(path string, status int, body []byte) *Error {
	message := engineMessage(body)
	var why reason.Reason
	switch {
	case strings.Contains(message, shutdownMessage):
		why = reason.EngineDrained
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		why = reason.EngineBusy
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		why = reason.EngineDown // it refuses our key, which is not the client's fault
	case status/100 == 4:
		why = reason.EngineRefused
	default:
		why = reason.EngineDown
	}
	return &Error{
		Reason: why, Status: status, Body: body,
		Err: fmt.Errorf("%s%s: status %d: %s", c.cfg.URL, path, status, message),
	}
}

// engineMessage finds the text in vLLM's present error body, its flat one of
// before 0.10.1, and FastAPI's own; else it is the start of the body.
func engineMessage(body []byte) string {
	message := text(body)
	for _, path := range []string{"error.message", "message", "detail"} {
		if said := gjson.Get(message, path); said.Type == gjson.String && said.Str != "" {
			message = said.Str
			break
		}
	}
	if len(message) > messageBytes {
		message = message[:messageBytes]
	}
	return strings.ToValidUTF8(strings.Clone(message), "")
}
