// Package nacostest is a small Nacos for tests: reads, writes with compare-and-set, long
// polls and logins of version 1 of its HTTP configuration API.
package nacostest

import (
	"crypto/md5" //nolint:gosec // Nacos compares by it
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Server is a Nacos. Make it with Start.
type Server struct {
	http *httptest.Server
	quit chan struct{}

	mu       sync.Mutex // guards what follows
	entries  map[string]string
	changed  chan struct{} // closed and made anew at each change
	away     bool
	noCAS    bool
	user     string // "user password"; "" = no logins
	token    string
	tokenTTL int
	logins   int
	polls    int
	onWrite  func() // once, before the next write
}

// Start runs a Nacos until the test ends.
func Start(t testing.TB) *Server {
	s := &Server{entries: map[string]string{}, changed: make(chan struct{}), quit: make(chan struct{}), tokenTTL: 18000}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /nacos/v1/auth/login", s.login)
	mux.HandleFunc("GET /nacos/v1/cs/configs", s.guard(s.get))
	mux.HandleFunc("POST /nacos/v1/cs/configs", s.guard(s.publish))
	mux.HandleFunc("POST /nacos/v1/cs/configs/listener", s.guard(s.listen))
	s.http = httptest.NewServer(mux)
	t.Cleanup(func() { close(s.quit); s.http.CloseClientConnections(); s.http.Close() })
	return s
}

// Addr is HOST:PORT.
func (s *Server) Addr() string { return strings.TrimPrefix(s.http.URL, "http://") }

func key(dataID, group, tenant string) string { return tenant + "/" + group + "/" + dataID }

// Set writes an entry as the console does.
func (s *Server) Set(dataID, group, tenant, text string) {
	s.change(func() { s.entries[key(dataID, group, tenant)] = text })
}

// Delete takes an entry away.
func (s *Server) Delete(dataID, group, tenant string) {
	s.change(func() { delete(s.entries, key(dataID, group, tenant)) })
}

// Away makes every call fail, polls in progress too.
func (s *Server) Away(away bool) {
	s.change(func() { s.away = away })
	if away {
		s.http.CloseClientConnections()
	}
}

// Login makes the server ask for a user and password; the tokens of before are void.
func (s *Server) Login(user, password string, ttlSeconds int) {
	s.change(func() { s.user, s.token, s.tokenTTL = user+" "+password, "", ttlSeconds })
}

// Expire voids the token.
func (s *Server) Expire() { s.change(func() { s.token = "" }) }

// WithoutCAS makes writes ignore what they expect, as old servers do.
func (s *Server) WithoutCAS() { s.change(func() { s.noCAS = true }) }

// BeforeWrite has f called once, before the next write is judged.
func (s *Server) BeforeWrite(f func()) { s.change(func() { s.onWrite = f }) }

// Counts are the logins and polls so far.
func (s *Server) Counts() (logins, polls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins, s.polls
}

func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) guard(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		away, refused := s.away, s.user != "" && (s.token == "" || r.URL.Query().Get("accessToken") != s.token)
		s.mu.Unlock()
		switch {
		case away:
			http.Error(w, "server is DOWN now", http.StatusServiceUnavailable)
		case refused:
			http.Error(w, `{"status":403,"message":"token invalid!"}`, http.StatusForbidden)
		default:
			next(w, r)
		}
	}
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.PostFormValue("username")+" "+r.PostFormValue("password") != s.user {
		http.Error(w, "unknown user!", http.StatusForbidden)
		return
	}
	s.logins++
	s.token = "t" + strconv.Itoa(s.logins)
	_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": s.token, "tokenTtl": s.tokenTTL, "globalAdmin": true})
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	text, ok := s.entries[key(r.FormValue("dataId"), r.FormValue("group"), r.FormValue("tenant"))]
	s.mu.Unlock()
	if !ok {
		http.Error(w, "config data not exist", http.StatusNotFound)
		return
	}
	_, _ = w.Write([]byte(text))
}

func sum(text string, ok bool) string {
	if !ok {
		return ""
	}
	m := md5.Sum([]byte(text)) //nolint:gosec // as above
	return hex.EncodeToString(m[:])
}

func (s *Server) publish(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	before := s.onWrite
	s.onWrite = nil
	s.mu.Unlock()
	if before != nil {
		before()
	}
	k := key(r.FormValue("dataId"), r.FormValue("group"), r.FormValue("tenant"))
	stale := false
	s.change(func() {
		text, ok := s.entries[k]
		if want := r.Header.Get("casMd5"); want != "" && want != sum(text, ok) && !s.noCAS {
			stale = true
			return
		}
		s.entries[k] = r.PostFormValue("content")
	})
	if stale {
		http.Error(w, "Cas publish fail, server md5 may have changed.", http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("true"))
}

// listen answers at once where the MD5 is another, else when it becomes so or the time is
// up.
func (s *Server) listen(w http.ResponseWriter, r *http.Request) {
	asked := r.PostFormValue("Listening-Configs")
	words := strings.Split(strings.TrimSuffix(asked, "\x01"), "\x02")
	millis, err := strconv.Atoi(r.Header.Get("Long-Pulling-Timeout"))
	if len(words) < 3 || err != nil || !strings.HasSuffix(asked, "\x01") {
		http.Error(w, "invalid probeModify", http.StatusBadRequest)
		return
	}
	tenant := ""
	if len(words) > 3 {
		tenant = words[3]
	}
	late := time.NewTimer(time.Duration(millis) * time.Millisecond)
	defer late.Stop()
	for first := true; ; first = false {
		s.mu.Lock()
		if first {
			s.polls++
		}
		text, ok := s.entries[key(words[0], words[1], tenant)]
		news := s.changed
		s.mu.Unlock()
		if sum(text, ok) != words[2] {
			_, _ = w.Write([]byte(url.QueryEscape(strings.Join([]string{words[0], words[1]}, "\x02") + "\x01")))
			return
		}
		select {
		case <-news:
		case <-late.C:
			return
		case <-s.quit:
			return
		case <-r.Context().Done():
			return
		}
	}
}
