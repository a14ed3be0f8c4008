// Package reload is what POST /reload answers and how penstock reload asks for and shows
// it: what became of each part that a process read again.
package reload

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

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
)

// What a reload made of a part or setting.
const (
	Applied      = "applied"
	Unchanged    = "unchanged"
	NeedsRestart = "needs restart"
	Refused      = "refused"
)

// Outcome is what a reload made of one part, or of one setting by its flag's name.
type Outcome struct {
	Part   string `json:"part"`
	Result string `json:"result"`
	Detail string `json:"detail"`
}

// Report is the answer of POST /reload.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	OK         bool      `json:"ok"`
	Parts      []Outcome `json:"parts"`
}

// Err is what was refused; nil = nothing.
func (r *Report) Err() error {
	var all []error
	for _, p := range r.Parts {
		if p.Result == Refused {
			all = append(all, errors.New(p.Detail))
		}
	}
	return errors.Join(all...)
}

// Ask makes the process whose admin listener is at address reload. An address that
// cannot be one is a usage error; where nobody answers the exit code is Unreachable.
func Ask(ctx context.Context, address string) (*Report, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, exit.Usagef("--admin %q: want HOST:PORT", address)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/reload", nil)
	if err != nil {
		return nil, exit.Usagef("--admin %q: %w", address, err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, exit.With(exit.Unreachable, fmt.Errorf("nobody answers at %s: %w. Name another with --admin HOST:PORT; a gateway's is 127.0.0.1:4785", address, err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	report := &Report{}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(report); err != nil || len(report.Parts) == 0 {
		return nil, fmt.Errorf("%s answers %s and is no admin listener of this version, or one for all interfaces: name another with --admin", address, resp.Status)
	}
	return report, nil
}

// Write shows report as output, text or json, has it. The error is what was refused.
func Write(w io.Writer, report *Report, output string) error {
	if output == "json" {
		if err := show.JSON(w, report); err != nil {
			return err
		}
		return report.Err()
	}
	t := show.Table(w, "PART", "RESULT", "DETAIL")
	for _, p := range report.Parts {
		line, _, _ := strings.Cut(p.Detail, "\n") // whole in the error
		show.Row(t, p.Part, p.Result, line)
	}
	return errors.Join(t.Flush(), report.Err())
}
