package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"penstock/policy"
)

// statusError is an answer that is not 200.
type statusError struct {
	code int
	said string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("nacos answers %d %s", e.code, e.said)
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += ": give a user who may do this in --policy-credentials-file"
	case http.StatusGone:
		text += ": this Nacos blocks version 1 of its API: set nacos.core.api.compatibility.client.enabled, and for penstock policy push .admin.enabled, to true"
	}
	return text
}

func answered(err error, code int) bool {
	failed := (*statusError)(nil)
	return errors.As(err, &failed) && failed.code == code
}

// call makes one call, at each server in turn until one answers, and logs in again once
// where a token is not taken any more.
func (e *Entry) call(ctx context.Context, method, path string, form url.Values, header http.Header) ([]byte, error) {
	var first error
	for range e.cfg.Servers {
		body, err := e.callOne(ctx, method, path, form, header)
		refused := (*statusError)(nil)
		if errors.As(err, &refused) && refused.code < http.StatusInternalServerError || err == nil || ctx.Err() != nil {
			return body, err
		}
		if first == nil {
			first = err
		}
		e.mu.Lock()
		e.server = (e.server + 1) % len(e.cfg.Servers)
		e.mu.Unlock()
	}
	return nil, first
}

func (e *Entry) callOne(ctx context.Context, method, path string, form url.Values, header http.Header) ([]byte, error) {
	for again := false; ; again = true {
		token, err := e.login(ctx, again)
		if err != nil {
			return nil, err
		}
		query := url.Values{}
		if token != "" {
			query.Set("accessToken", token)
		}
		body, err := e.send(ctx, method, path, query, form, header)
		if token == "" || again || !answered(err, http.StatusForbidden) && !answered(err, http.StatusUnauthorized) {
			return body, err
		}
	}
}

// login is the token to call with, "" where there are no credentials.
func (e *Entry) login(ctx context.Context, anew bool) (string, error) {
	if e.cfg.CredentialsFile == "" {
		return "", nil
	}
	e.mu.Lock()
	token, renewAt := e.token, e.renewAt
	e.mu.Unlock()
	if !anew && token != "" && time.Now().Before(renewAt) {
		return token, nil
	}
	user, password, err := readCredentials(e.cfg.CredentialsFile)
	if err != nil {
		return "", err
	}
	body, err := e.send(ctx, http.MethodPost, "/v1/auth/login", nil, url.Values{"username": {user}, "password": {password}}, nil)
	if err != nil {
		// Nacos 2.3.2 answers a wrong password with status 0, and an unknown user with 500.
		if said := err.Error(); strings.Contains(said, `status code "0"`) || strings.Contains(said, "User "+user+" not found") {
			err = &statusError{http.StatusForbidden, "unknown user or wrong password"}
		}
		return "", fmt.Errorf("login of %q: %w", user, err)
	}
	var got struct {
		Token string `json:"accessToken"`
		TTL   int64  `json:"tokenTtl"` // seconds
	}
	if err := json.Unmarshal(body, &got); err != nil || got.Token == "" {
		return "", fmt.Errorf("login of %q: the answer has no accessToken", user)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.token, e.renewAt = got.Token, time.Now().Add(max(time.Duration(got.TTL)*time.Second-renewBefore, time.Second))
	return got.Token, nil
}

// send makes one HTTP call to the server of the day. A form goes into the query of a
// GET, into the body of a POST.
func (e *Entry) send(ctx context.Context, method, path string, query, form url.Values, header http.Header) ([]byte, error) {
	limit := answerWithin
	if header.Get("Long-Pulling-Timeout") != "" {
		limit += pollFor
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	e.mu.Lock()
	u := url.URL{Scheme: "http", Host: e.cfg.Servers[e.server], Path: "/nacos" + path}
	e.mu.Unlock()
	if e.cfg.TLS {
		u.Scheme = "https"
	}
	var body io.Reader
	if method == http.MethodGet {
		for name, values := range form {
			query[name] = values
		}
	} else {
		body = strings.NewReader(form.Encode())
	}
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded;charset=UTF-8")
	resp, err := e.client.Do(req)
	if err != nil {
		if failed := (*url.Error)(nil); errors.As(err, &failed) {
			err = failed.Err // the address has a token in it
		}
		return nil, fmt.Errorf("%s: %w", u.Host, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, policy.MaxBytes+1))
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{resp.StatusCode, strings.TrimSpace(string(answer[:min(len(answer), saidMost)]))}
	}
	return answer, err
}
