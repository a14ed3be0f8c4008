// Package nacostest is a small Nacos for tests: reads, writes with compare-and-set, long
// polls and logins of version 1 of its HTTP configuration API, as Nacos 2.3.2 has them.
// It holds a poll as long as it is asked to; Nacos does so half a second less, and 10 s
// at least.
package nacostest

import (
	"crypto/md5" //nolint:gosec // Nacos compares by it
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A write is shown showAfter its answer: a real one takes it over from its database in
// some 100 ms. formMost is the longest form that its web server takes.
const showAfter, formMost = 50 * time.Millisecond, 2 << 20

// Server is a Nacos. Make it with Start.
type Server struct {
	http *httptest.Server
	quit chan struct{}

	mu       sync.Mutex        // guards what follows
	entries  map[string]string // as written
	shown    map[string]string // as read and polled
	busy     int               // reads that find the entry being taken over
	changed  chan struct{}     // closed and made anew at each change
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
	s := &Server{entries: map[string]string{}, shown: map[string]string{}, changed: make(chan struct{}), quit: make(chan struct{}), tokenTTL: 18000}
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

// Set writes an entry as the console does, and shows it.
func (s *Server) Set(dataID, group, tenant, text string) {
	k := key(dataID, group, tenant)
	s.change(func() { s.entries[k], s.shown[k] = text, text })
}

// Delete takes an entry away.
func (s *Server) Delete(dataID, group, tenant string) {
	k := key(dataID, group, tenant)
	s.change(func() { delete(s.entries, k); delete(s.shown, k) })
}

// Busy makes the next reads find the entry being taken over.
func (s *Server) Busy(reads int) { s.change(func() { s.busy = reads }) }

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
			http.Error(w, `{"status":403,"error":"Forbidden","path":"`+r.URL.Path+`"}`, http.StatusForbidden)
		default:
			next(w, r)
		}
	}
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.PostFormValue("username")
	switch known, _, _ := strings.Cut(s.user, " "); {
	case name != known:
		http.Error(w, "caused: User "+name+" not found;", http.StatusInternalServerError)
		return
	case name+" "+r.PostFormValue("password") != s.user:
		conn, _, err := http.NewResponseController(w).Hijack() // no server of Go's answers with 0
		if err == nil {
			_, _ = conn.Write([]byte("HTTP/1.1 0 \r\nConnection: close\r\n\r\n"))
			_ = conn.Close()
		}
		return
	}
	s.logins++
	s.token = "t" + strconv.Itoa(s.logins)
	_ = json.NewEncoder(w).Encode(map[string]any{"accessToken": s.token, "tokenTtl": s.tokenTTL, "globalAdmin": true})
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.shown[key(r.FormValue("dataId"), r.FormValue("group"), r.FormValue("tenant"))]
	switch {
	case s.busy > 0:
		s.busy--
		http.Error(w, "requested file is being modified, please try later.", http.StatusConflict)
	case !ok:
		http.Error(w, "config data not exist", http.StatusNotFound)
	default:
		_, _ = w.Write([]byte(text))
	}
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
	content := r.PostFormValue("content")
	switch {
	case r.ContentLength > formMost:
		http.Error(w, "Parameter 'dataId' is missing", http.StatusBadRequest)
	case strings.TrimSpace(content) == "":
		http.Error(w, "content is blank : "+content, http.StatusBadRequest)
	case !s.write(key(r.FormValue("dataId"), r.FormValue("group"), r.FormValue("tenant")), content, r.Header.Get("casMd5")):
		http.Error(w, "Cas publish fail, server md5 may have changed.", http.StatusInternalServerError)
	default:
		_, _ = w.Write([]byte("true"))
	}
}

// write says whether the text was the one wanted. What is not there is written whatever
// was wanted.
func (s *Server) write(k, content, want string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text, ok := s.entries[k]; ok && want != "" && want != sum(text, true) && !s.noCAS {
		return false
	}
	s.entries[k] = content
	time.AfterFunc(showAfter, func() {
		s.change(func() {
			if s.entries[k] == content {
				s.shown[k] = content
			}
		})
	})
	return true
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
		text, ok := s.shown[key(words[0], words[1], tenant)]
		news := s.changed
		s.mu.Unlock()
		if sum(text, ok) != words[2] {
			_, _ = w.Write([]byte(url.QueryEscape(strings.Join(slices.Delete(words, 2, 3), "\x02") + "\x01")))
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
