//go:build e2e

package nacos

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/policy"
	"penstock/policy/source"
	"penstock/policy/source/sourcetest"
)

// real is an entry of its own on the Nacos at E2E_NACOS.
type real struct {
	t     *testing.T
	entry *Entry
	addr  string
}

func newReal(t *testing.T, edit func(*Config)) *real {
	t.Helper()
	addr := os.Getenv("E2E_NACOS")
	if addr == "" {
		t.Fatal("E2E_NACOS is not set: start one with scripts/nacos/nacos.sh start and give host:port")
	}
	r := &real{t, newEntry(t, func(c *Config) {
		c.DataID = rand.Text() + ".yaml"
		if edit != nil {
			edit(c)
		}
	}, addr), addr}
	t.Cleanup(r.remove)
	return r
}

// raw does what an operator's curl does.
func (r *real) raw(method string, form url.Values) (int, string) {
	for name, values := range r.entry.names() {
		form[name] = values
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+r.addr+"/nacos/v1/cs/configs?"+form.Encode(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if text, ok := form["content"]; ok {
		form.Del("content")
		req.URL.RawQuery = form.Encode()
		body := url.Values{"content": text}.Encode()
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded;charset=UTF-8")
	}
	req.Close = true // no connection outlives the test
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// set writes, and waits until it can be read, as whoever looks at what they wrote does.
func (r *real) set(text string) {
	r.t.Helper()
	if code, said := r.raw(http.MethodPost, url.Values{"content": {text}, "type": {"yaml"}}); code != http.StatusOK {
		r.t.Fatalf("Nacos answers a write with %d %s", code, said)
	}
	r.until("the text can be read", func() bool {
		code, said := r.raw(http.MethodGet, url.Values{})
		return code == http.StatusOK && said == text
	})
}

func (r *real) remove() {
	if code, said := r.raw(http.MethodDelete, url.Values{}); code != http.StatusOK {
		r.t.Errorf("Nacos answers a delete with %d %s", code, said)
	}
}

func (r *real) until(what string, holds func() bool) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// between stands between an entry and its server, and can be away.
func between(t *testing.T, r *real) (away func(bool)) {
	down := atomic.Bool{}
	line := &http.Transport{DisableKeepAlives: true}
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.addr})
	to.Transport = line
	to.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if down.Load() {
			panic(http.ErrAbortHandler)
		}
		to.ServeHTTP(w, req)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close(); line.CloseIdleConnections() })
	r.entry.cfg.Servers = []string{strings.TrimPrefix(s.URL, "http://")}
	return func(away bool) {
		down.Store(away)
		if away {
			s.CloseClientConnections()
		}
	}
}

func TestRealConformance(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"in a namespace": nil,
		"public":         func(c *Config) { c.Namespace = "public" },
	} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T) sourcetest.Stage {
				r := newReal(t, edit)
				return sourcetest.Stage{Place: r.entry, Away: between(t, r), Write: r.set, Remove: r.remove}
			})
		})
	}
}

const wide = "größer: 1 & 2 + 3 % 4 # 限流 🙂\n\n  \t\n"

// TestRealReplace: what is written is read byte for byte, once Nacos shows it, and
// whoever was slower learns it, before and after that.
func TestRealReplace(t *testing.T) {
	r := newReal(t, nil)
	e, ctx := r.entry, t.Context()
	if _, err := e.Read(ctx); !errors.Is(err, source.ErrAbsent) {
		t.Fatalf("Read of nothing: %v", err)
	}
	if err := e.Replace(ctx, nil, []byte(wide)); err != nil {
		t.Fatal(err)
	}
	if text, err := e.Read(ctx); err != nil || string(text) != wide {
		t.Errorf("%q, %v; want %q", text, err, wide)
	}
	for _, old := range [][]byte{nil, []byte("x")} {
		if err := e.Replace(ctx, old, []byte("b")); !errors.Is(err, source.ErrChanged) {
			t.Errorf("of %q: %v, want ErrChanged", old, err)
		}
	}
	r.set("a")
	for _, next := range []string{"b", "c", "d"} {
		if err := e.Replace(ctx, []byte("a"), []byte(next)); err != nil {
			t.Fatal(err)
		}
		if text, err := e.Read(ctx); err != nil || string(text) != next {
			t.Errorf("Read right after Replace: %q, %v; want %s", text, err, next)
		}
		if code, said := r.raw(http.MethodPost, url.Values{"content": {"a"}}); code != http.StatusOK {
			t.Fatalf("Nacos answers a write with %d %s", code, said)
		}
		if err := e.Replace(ctx, []byte(next), []byte("slower")); !errors.Is(err, source.ErrChanged) {
			t.Errorf("right after another's write: %v, want ErrChanged", err)
		}
		r.until("another's write", func() bool { text, err := e.Read(ctx); return err == nil && string(text) == "a" })
	}
}

// TestRealPoll: nothing is told while nothing changes, by Nacos's own MD5 of text that is
// not ASCII, and each change soon: another text, none, one again.
func TestRealPoll(t *testing.T) {
	r := newReal(t, nil)
	e, ctx := r.entry, t.Context()
	e.hold = time.Second // Nacos holds a poll at least 10 s
	r.set(wide)
	if _, err := e.Read(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := e.poll(ctx); err != nil || time.Since(began) < 9*time.Second {
		t.Errorf("poll of what is known: %v after %v, want 10 s", err, time.Since(began))
	}
	e.hold = pollFor
	for name, change := range map[string]func(){
		"another text": func() { r.set("b") },
		"none":         r.remove,
	} {
		r.set(wide)
		if _, err := e.Read(ctx); err != nil {
			t.Fatal(err)
		}
		told := make(chan error, 1)
		go func() { told <- e.poll(ctx) }()
		select {
		case err := <-told:
			t.Fatalf("%s: told before it changed: %v", name, err)
		case <-time.After(time.Second): // Nacos keeps the poll by then
		}
		began = time.Now()
		change()
		if err := <-told; err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
		t.Logf("%s: told after %v", name, time.Since(began))
	}
}

// TestRealPlaces: namespace, group and data id are three.
func TestRealPlaces(t *testing.T) {
	r := newReal(t, nil)
	r.set("a")
	for name, edit := range map[string]func(*Config){
		"public":            func(c *Config) { c.Namespace = "" },
		"another namespace": func(c *Config) { c.Namespace = "nosuch" },
		"another group":     func(c *Config) { c.Group = "" },
	} {
		cfg := r.entry.cfg
		edit(&cfg)
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := e.Read(t.Context()); !errors.Is(err, source.ErrAbsent) {
			t.Errorf("%s: %q, %v; want ErrAbsent", name, text, err)
		}
		_ = e.Close()
	}
}

// TestRealLargest: the longest policy goes there and back; one that Nacos's web server
// does not take says what to do.
func TestRealLargest(t *testing.T) {
	r := newReal(t, nil)
	e, ctx := r.entry, t.Context()
	text := strings.Repeat("# 0123456789abcd\n", policy.MaxBytes/17)
	if err := e.Replace(ctx, nil, []byte(text)); err != nil {
		t.Fatal(err)
	}
	if got, err := e.Read(ctx); err != nil || string(got) != text {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(text))
	}
	if err := e.Replace(ctx, []byte(text), []byte(strings.Repeat("限", policy.MaxBytes/3))); err == nil || !strings.Contains(err.Error(), "server.tomcat.max-http-form-post-size") {
		t.Errorf("3 MiB as it is sent: %v", err)
	}
}

// TestRealLogin: on a Nacos that asks for users, as scripts/nacos makes one.
func TestRealLogin(t *testing.T) {
	addr := os.Getenv("E2E_NACOS_AUTH")
	if addr == "" {
		t.Fatal("E2E_NACOS_AUTH is not set: start a second one with NACOS_AUTH=1 and give host:port")
	}
	ctx, id := t.Context(), rand.Text()
	as := func(text string) *Entry {
		return newEntry(t, func(c *Config) {
			c.DataID = id
			if text != "" {
				c.CredentialsFile = credentials(t, text)
			}
		}, addr)
	}
	for text, want := range map[string]string{
		"":              "nacos answers 403",
		"nacos wrong1":  "nacos answers 403 unknown user or wrong password",
		"nobody wrong1": "nacos answers 403 unknown user or wrong password",
	} {
		if _, err := as(text).Read(ctx); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--policy-credentials-file") || strings.Contains(err.Error(), "wrong1") {
			t.Errorf("as %q: %v, want %q and what to do", text, err, want)
		}
	}
	e := as("nacos nacos")
	if err := e.Replace(ctx, nil, []byte(wide)); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.token = "void"
	e.mu.Unlock()
	if text, err := e.Read(ctx); err != nil || string(text) != wide {
		t.Errorf("with a token that is not taken: %q, %v", text, err)
	}
	e.mu.Lock()
	e.token, e.sum = "void", "another"
	e.mu.Unlock()
	if err := e.poll(ctx); err != nil {
		t.Errorf("poll with a token that is not taken: %v", err)
	}
}

// TestRealRestart: a server that is killed while it holds a poll, and comes back with
// what it had, is away and never without a policy; changes are told as before.
// E2E_NACOS_SCRIPT kills and starts it.
func TestRealRestart(t *testing.T) {
	script := os.Getenv("E2E_NACOS_SCRIPT")
	if script == "" {
		t.Fatal("E2E_NACOS_SCRIPT is not set: give the path of scripts/nacos/nacos.sh")
	}
	r := newReal(t, nil)
	r.set("a")
	if _, err := r.entry.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	var text atomic.Value
	var failed, absent atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.entry.Watch(ctx, func() {
			now, err := r.entry.Read(ctx)
			switch {
			case errors.Is(err, source.ErrAbsent):
				absent.Add(1)
			case err != nil:
				failed.Add(1)
			}
			text.Store(string(now))
		})
	}()
	defer func() { stop(); <-done }()
	for _, how := range []string{"kill", "stop"} {
		before := failed.Load()
		time.Sleep(time.Second) // Nacos holds the poll by then
		for _, verb := range []string{how, "start"} {
			if out, err := exec.Command(script, verb).CombinedOutput(); err != nil {
				t.Fatalf("%s %s: %v\n%s", script, verb, err, out)
			}
		}
		if failed.Load() == before {
			t.Errorf("%s: no read failed: it was not away", how)
		}
		r.until("the text of before", func() bool { return text.Load() == "a" })
		for _, next := range []string{"b", "a"} {
			r.set(next)
			r.until("a change after the restart", func() bool { return text.Load() == next })
		}
	}
	if n := absent.Load(); n > 0 {
		t.Errorf("%d reads say that there is no policy, while there was one", n)
	}
}
