package simengine

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Handler serves vLLM's routes. A client that goes away aborts its sequences when
// the running step ends.
func (s *Server) Handler() http.Handler {
	type endpoint struct {
		method string
		serve  http.HandlerFunc
	}
	routes := map[string]endpoint{
		"/v1/chat/completions": {http.MethodPost, s.generate(chat)},
		"/v1/completions":      {http.MethodPost, s.generate(completions)},
		"/v1/embeddings":       {http.MethodPost, s.generate(embeddings)},
		"/v1/models":           {http.MethodGet, s.models},
		"/health":              {http.MethodGet, s.health},
		"/version":             {http.MethodGet, s.version},
		"/metrics":             {http.MethodGet, s.metricsPage},
		"/metrics/":            {http.MethodGet, s.metricsFiltered},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Server"] = []string{"uvicorn"}
		w.Header()["Vary"] = []string{"Origin"}
		switch e, ok := routes[r.URL.Path]; {
		case !ok:
			answer(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		case r.Method != e.method:
			w.Header().Set("Allow", e.method)
			answer(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
		default:
			e.serve(w, r)
		}
	})
}

func answer(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	if len(body) > 0 {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone: nobody is left to tell
}

func refuse(w http.ResponseWriter, e *apiError) { answer(w, e.Status, e.body()) }

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	dead := s.failure != nil
	s.mu.Unlock()
	status := http.StatusOK
	if dead {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, nil)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, []byte(`{"version":"`+Version+`"}`))
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	now := time.Now().Unix()
	answer(w, http.StatusOK, fmt.Appendf(nil, `{"object":"list","data":[{"id":%[1]s,"object":"model","created":%[2]d,"owned_by":"vllm","root":%[1]s,"parent":null,"max_model_len":%[3]d,`+
		`"permission":[{"id":"modelperm-%016[4]x","object":"model_permission","created":%[2]d,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}]}`,
		quote(s.cfg.Model), now, s.cfg.Engine.MaxModelLen, mix(uint64(now))))
}

// generate serves a request for the engine.
func (s *Server) generate(r route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if media, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || media != "application/json" {
			refuse(w, errMediaType)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, s.cfg.MaxBody))
		if err != nil {
			var large *http.MaxBytesError
			if errors.As(err, &large) {
				answer(w, http.StatusRequestEntityTooLarge, []byte(`{"detail":"Request Entity Too Large"}`))
			}
			return
		}
		c, bad := s.parse(r, body)
		if bad == nil {
			bad = s.refusal(c)
		}
		if bad != nil {
			refuse(w, bad)
			return
		}
		c.name(req.Header.Get("X-Request-Id"))
		if c.stream {
			s.stream(w, req, c)
		} else {
			s.whole(w, req, c)
		}
	}
}

// refusal is the answer of an engine that is dead or has long been full. While
// requests keep arriving within one step vLLM notices only when it adds them:
// a stream then has its 200 already.
func (s *Server) refusal(c *call) *apiError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return s.failure
	}
	limit := s.cfg.Engine.MaxQueuedReqs
	if s.settled && limit > 0 && s.engine.InFlight()+len(c.tracks) > limit {
		s.metrics.rejectedEarly++
		return errBusy
	}
	return nil
}

// name gives the answer its id: the client's header, or 16 random hex digits.
func (c *call) name(header string) {
	now := time.Now()
	c.created = now.Unix()
	prefix := map[route]string{chat: "chatcmpl-", completions: "cmpl-", embeddings: "embd-"}[c.route]
	if header = strings.TrimSpace(header); header == "" {
		header = fmt.Sprintf("%016x", mix(uint64(now.UnixNano())^c.tracks[0].text))
	}
	c.id = prefix + header
}
