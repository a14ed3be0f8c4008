package simengine

import (
	"net/http"
	"strconv"
)

// stream serves a request that wants its answer token by token, one event each.
// The status goes out before the engine is asked, as vLLM does.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header()["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	_ = out.Flush() // as a failed Write below: the client has gone, and the context ends
	if bad := s.submit(c); bad != nil {
		_, _ = w.Write(append(bad.frame(), done...))
		return
	}
	e := newEvents(s, c)
	for {
		select {
		case <-r.Context().Done():
			s.abandon(c)
			return
		case <-c.woken:
		}
		over, failed := s.progress(c, e.now)
		e.render()
		if failed != nil {
			e.buf = append(append(e.buf, failed.frame()...), done...)
		} else if over {
			e.finish()
		}
		if len(e.buf) > 0 {
			if _, err := w.Write(e.buf); err != nil {
				s.abandon(c)
				return
			}
			_ = out.Flush()
		}
		if over || failed != nil {
			return
		}
	}
}

// progress copies how many tokens every choice has.
func (s *Server) progress(c *call, now []int) (over bool, failed *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	over = true
	for i, t := range c.tracks {
		now[i] = t.produced
		over = over && t.over
	}
	return over, c.failed
}

const done = "data: [DONE]\n\n"

// events renders one stream. The fields of a chunk that never change are made once.
type events struct {
	server *Server
	call   *call
	head   []byte // up to the choice's index
	now    []int  // tokens of each choice
	sent   []int  // of those, already rendered
	buf    []byte // events of this round
}

func newEvents(s *Server, c *call) *events {
	object := "text_completion"
	if c.route == chat {
		object = "chat.completion.chunk"
	}
	head := `data: {"id":` + quote(c.id) + `,"object":"` + object + `","created":` + strconv.FormatInt(c.created, 10) + `,"model":` + quote(s.cfg.Model) + `,"choices":[`
	return &events{
		server: s, call: c, head: []byte(head),
		now: make([]int, len(c.tracks)), sent: make([]int, len(c.tracks)),
	}
}

// render appends the events of the tokens that came since the last call.
func (e *events) render() {
	e.buf = e.buf[:0]
	for i, t := range e.call.tracks {
		for ; e.sent[i] < e.now[i]; e.sent[i]++ {
			if e.call.route == chat {
				e.roles()
				e.chat(i, t)
			} else {
				e.completion(i, t)
			}
		}
	}
}

// roles is chat's first event, one for every choice, sent with the first token.
func (e *events) roles() {
	for _, n := range e.sent {
		if n > 0 {
			return
		}
	}
	for i := range e.call.tracks {
		e.choice(i)
		e.buf = append(e.buf, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		e.usage(e.call.tracks[i], 0)
		e.buf = append(e.buf, `,"prompt_token_ids":null,"prompt_text":null}`+"\n\n"...)
	}
}

func (e *events) choice(i int) {
	e.buf = append(append(e.buf, e.head...), `{"index":`...)
	e.buf = append(strconv.AppendInt(e.buf, int64(i), 10), ',')
}

func (e *events) chat(i int, t *track) {
	k := e.sent[i]
	e.choice(i)
	e.buf = append(e.buf, `"delta":{"content":"`...)
	e.buf = e.server.appendToken(e.buf, t, k)
	e.buf = append(e.buf, `"},"logprobs":null,"finish_reason":`...)
	if k+1 == t.output {
		e.buf = append(e.buf, `"`+t.reason()+`","stop_reason":null,"token_ids":null}]`...)
	} else {
		e.buf = append(e.buf, `null,"token_ids":null}]`...)
	}
	e.usage(t, k+1)
	e.close(k+1 == t.output)
}

func (e *events) completion(i int, t *track) {
	k := e.sent[i]
	e.choice(i)
	e.buf = append(e.buf, `"text":"`...)
	e.buf = e.server.appendToken(e.buf, t, k)
	e.buf = append(e.buf, `","logprobs":null,"finish_reason":`...)
	if k+1 == t.output {
		e.buf = append(e.buf, `"`+t.reason()+`"`...)
	} else {
		e.buf = append(e.buf, `null`...)
	}
	e.buf = append(e.buf, `,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]`...)
	e.usage(t, k+1)
	e.close(k+1 == t.output)
}

// usage is the running count of one choice, where the client wants it.
func (e *events) usage(t *track, output int) {
	if !e.call.continuous {
		return
	}
	e.counts(e.call.prompts[t.prompt].tokens, output)
	if e.call.route == chat {
		e.buf = append(e.buf, `,"completion_tokens_details":null`...)
	}
	e.buf = append(e.buf, '}')
}

func (e *events) counts(prompt, output int) {
	e.buf = append(e.buf, `,"usage":{"prompt_tokens":`...)
	e.buf = strconv.AppendInt(e.buf, int64(prompt), 10)
	e.buf = append(e.buf, `,"total_tokens":`...)
	e.buf = strconv.AppendInt(e.buf, int64(prompt+output), 10)
	e.buf = append(e.buf, `,"completion_tokens":`...)
	e.buf = strconv.AppendInt(e.buf, int64(output), 10)
}

// close ends a chunk; the last of each choice carries the fingerprint, unless a
// usage event comes after all.
func (e *events) close(last bool) {
	if last && !e.call.usage {
		e.buf = append(e.buf, `,"system_fingerprint":"`+fingerprint+`"`...)
	}
	e.buf = append(e.buf, "}\n\n"...)
}

// finish is the end of a stream whose choices are all complete.
func (e *events) finish() {
	if e.call.usage {
		output := 0
		for _, t := range e.call.tracks {
			output += t.output
		}
		e.buf = append(append(e.buf, e.head...), ']')
		e.counts(e.call.promptTokens(), output)
		e.buf = append(e.buf, `},"system_fingerprint":"`+fingerprint+`"}`+"\n\n"...)
	}
	e.buf = append(e.buf, done...)
}
