package nacos

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"penstock/policy"
	"penstock/policy/source"
	"penstock/policy/source/nacos/nacostest"
	"penstock/policy/source/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dataID, group, namespace = "penstock.yaml", "llm", "prod"

func newEntry(t *testing.T, edit func(*Config), servers ...string) *Entry {
	t.Helper()
	cfg := Config{Servers: servers, DataID: dataID, Group: group, Namespace: namespace}
	if edit != nil {
		edit(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.retry = 20 * time.Millisecond
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func conform(t *testing.T, edit func(*nacostest.Server, *Config)) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Stage {
		s := nacostest.Start(t)
		e := newEntry(t, func(c *Config) {
			if edit != nil {
				edit(s, c)
			}
		}, s.Addr())
		return sourcetest.Stage{
			Place: e, Away: s.Away,
			Write:  func(text string) { s.Set(dataID, group, namespace, text) },
			Remove: func() { s.Delete(dataID, group, namespace) },
		}
	})
}

func TestConformance(t *testing.T) { conform(t, nil) }

// TestConformanceWithLogins: tokens that end at once are renewed.
func TestConformanceWithLogins(t *testing.T) {
	file := credentials(t, "me\nsecret\n")
	conform(t, func(s *nacostest.Server, c *Config) {
		s.Login("me", "secret", 1)
		c.CredentialsFile = file
	})
}

func credentials(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestLogin: a token is used until it is not taken any more, and a refusal says what to
// give and no secret.
func TestLogin(t *testing.T) {
	s := nacostest.Start(t)
	s.Set(dataID, group, namespace, "a")
	s.Login("me", "secret", 18000)
	ctx := t.Context()
	if _, err := newEntry(t, nil, s.Addr()).Read(ctx); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "--policy-credentials-file") {
		t.Errorf("without credentials: %v", err)
	}
	for _, user := range []string{"me", "you"} {
		wrong := newEntry(t, func(c *Config) { c.CredentialsFile = credentials(t, user+" wrong1") }, s.Addr())
		if _, err := wrong.Read(ctx); err == nil || !strings.Contains(err.Error(), "login of \""+user+"\": nacos answers 403 unknown user or wrong password: give a user") || strings.Contains(err.Error(), "wrong1") {
			t.Errorf("%s with a wrong password: %v", user, err)
		}
	}
	e := newEntry(t, func(c *Config) { c.CredentialsFile = credentials(t, "me\nsecret\n") }, s.Addr())
	for range 3 {
		if text, err := e.Read(ctx); err != nil || string(text) != "a" {
			t.Fatalf("%q, %v", text, err)
		}
	}
	if logins, _ := s.Counts(); logins != 1 {
		t.Errorf("%d logins, want 1", logins)
	}
	s.Expire()
	if text, err := e.Read(ctx); err != nil || string(text) != "a" {
		t.Errorf("after the token's end: %q, %v", text, err)
	}
}

// TestPollWaits: nothing is asked for while nothing changes.
func TestPollWaits(t *testing.T) {
	s := nacostest.Start(t)
	s.Set(dataID, group, namespace, "a")
	e := newEntry(t, nil, s.Addr())
	if _, err := e.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.hold = 100 * time.Millisecond
	began := time.Now()
	if err := e.poll(t.Context()); err != nil || time.Since(began) < e.hold {
		t.Errorf("poll of what is known: %v after %v, want %v", err, time.Since(began), e.hold)
	}
	e.hold = time.Minute
	s.Set(dataID, group, namespace, "b")
	if err := e.poll(t.Context()); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("poll of a change: %v after %v", err, time.Since(began))
	}
}

// TestSecondServer serves where the first is away.
func TestSecondServer(t *testing.T) {
	one, two := nacostest.Start(t), nacostest.Start(t)
	one.Away(true)
	two.Set(dataID, group, namespace, "a")
	e := newEntry(t, nil, one.Addr(), two.Addr())
	if text, err := e.Read(t.Context()); err != nil || string(text) != "a" {
		t.Errorf("%q, %v; want the second's", text, err)
	}
	two.Away(true)
	if _, err := e.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("both away: %v", err)
	}
}

func TestReplace(t *testing.T) {
	for _, cas := range []bool{true, false} {
		s := nacostest.Start(t)
		if !cas {
			s.WithoutCAS()
		}
		e, ctx := newEntry(t, nil, s.Addr()), t.Context()
		if _, err := e.Read(ctx); !errors.Is(err, source.ErrAbsent) || !strings.Contains(err.Error(), "push FILE --to nacos://") {
			t.Errorf("Read of nothing: %v", err)
		}
		if err := e.Replace(ctx, nil, []byte("größer: 1 & 2\n")); err != nil {
			t.Error(err)
		}
		if text, err := e.Read(ctx); err != nil || string(text) != "größer: 1 & 2\n" {
			t.Errorf("%q, %v", text, err)
		}
		for _, old := range [][]byte{nil, []byte("x")} {
			if err := e.Replace(ctx, old, []byte("b")); !errors.Is(err, source.ErrChanged) {
				t.Errorf("of %q: %v, want ErrChanged", old, err)
			}
		}
		s.BeforeWrite(func() { s.Set(dataID, group, namespace, "faster") })
		if err := e.Replace(ctx, []byte("größer: 1 & 2\n"), []byte("b")); cas != errors.Is(err, source.ErrChanged) {
			t.Errorf("CAS %v: somebody between read and write: %v", cas, err)
		}
	}
}

// TestReplaceUnseen: a write of somebody faster that Nacos does not show yet is found
// when it writes; one that it shows is waited for, so that whoever reads next sees it.
func TestReplaceUnseen(t *testing.T) {
	s := nacostest.Start(t)
	s.Set(dataID, group, namespace, "a")
	e, ctx := newEntry(t, nil, s.Addr()), t.Context()
	if err := e.Replace(ctx, []byte("a"), []byte("b")); err != nil {
		t.Fatal(err)
	}
	if text, err := e.Read(ctx); err != nil || string(text) != "b" {
		t.Errorf("Read right after Replace: %q, %v; want b", text, err)
	}
	form := e.names()
	form.Set("content", "faster")
	if _, err := e.call(ctx, http.MethodPost, "/v1/cs/configs", form, nil); err != nil {
		t.Fatal(err)
	}
	if text, err := e.Read(ctx); err != nil || string(text) != "b" {
		t.Errorf("Read right after another's write: %q, %v; want b still", text, err)
	}
	if err := e.Replace(ctx, []byte("b"), []byte("c")); !errors.Is(err, source.ErrChanged) {
		t.Errorf("Replace of what is only shown: %v, want ErrChanged", err)
	}
}

// TestReplaceGone: what was deleted after the look is written again, whatever was
// expected, as the first one is.
func TestReplaceGone(t *testing.T) {
	s := nacostest.Start(t)
	s.Set(dataID, group, namespace, "a")
	s.BeforeWrite(func() { s.Delete(dataID, group, namespace) })
	if err := newEntry(t, nil, s.Addr()).Replace(t.Context(), []byte("a"), []byte("b")); err != nil {
		t.Error(err)
	}
}

// TestReplaceRefused: what Nacos takes no text for is said.
func TestReplaceRefused(t *testing.T) {
	s := nacostest.Start(t)
	e := newEntry(t, nil, s.Addr())
	for text, want := range map[string]string{
		" \n":                                  "content is blank",
		strings.Repeat("限", policy.MaxBytes/4): "server.tomcat.max-http-form-post-size",
	} {
		if err := e.Replace(t.Context(), nil, []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.9q: %v, want %q", text, err, want)
		}
	}
}

// TestBusy: an entry that Nacos is taking over is read a moment later.
func TestBusy(t *testing.T) {
	s := nacostest.Start(t)
	s.Set(dataID, group, namespace, "a")
	s.Busy(3)
	e := newEntry(t, nil, s.Addr())
	if text, err := e.Read(t.Context()); err != nil || string(text) != "a" {
		t.Errorf("%q, %v", text, err)
	}
	s.Busy(1 << 30)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := e.Read(ctx); err == nil {
		t.Error("a read that never ends well succeeds")
	}
}

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		text string
		want Config
		err  string
	}{
		{"nacos://h/p.yaml", Config{Servers: []string{"h:8848"}, DataID: "p.yaml"}, ""},
		{"nacos://h:80,[::1]/p?group=g&namespace=n", Config{Servers: []string{"h:80", "[::1]:8848"}, DataID: "p", Group: "g", Namespace: "n"}, ""},
		{"nacoss://h/p?tenant=n", Config{Servers: []string{"h:8848"}, TLS: true, DataID: "p", Namespace: "n"}, ""},
		{"nacos:h/p", Config{}, "want nacos://HOST:8848/DATAID"},
		{"nacos://h:8848", Config{}, `data id "": want nacos://`},
		{"nacos://h/a/b", Config{}, `data id "a/b"`},
		{"nacos://h:a/b", Config{}, `host "h:a"`},
		{"nacos://me:secret@h/b", Config{}, "user and password belong into --policy-credentials-file"},
		{"nacos://h/p?grp=g", Config{}, `"grp" is not known`},
		{"nacos://h/p?group=a%02b", Config{}, `group "a\x02b": Nacos takes letters`},
	} {
		got, err := ParseURL(c.text)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want %q", c.text, err, c.err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", c.text, err, diff)
		}
	}
	for text, want := range map[string]string{"me": "1 words, want the user's name and the password", "": "0 words"} {
		cfg := Config{Servers: []string{"h:1"}, DataID: "d", CredentialsFile: credentials(t, text)}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("credentials %q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseURL: what is taken is written so that it is taken again.
func FuzzParseURL(f *testing.F) {
	for _, text := range []string{"nacos://h/p.yaml", "nacos://h:80,[::1]/p?group=g&namespace=n", "nacoss://h/p?tenant=n", "nacos://h:a/b", "nacos://%41/%42?%43"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cfg, err := ParseURL(text)
		if err != nil {
			return
		}
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseURL(e.String())
		if diff := cmp.Diff(e.cfg, again); err != nil || diff != "" {
			t.Errorf("%q is %v: %v (-want +got):\n%s", text, e, err, diff)
		}
	})
}
