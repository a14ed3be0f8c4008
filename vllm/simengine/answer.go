package simengine

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strconv"
)

const fingerprint = "vllm-" + Version + "-5ca1ab1e"

// whole serves a request that wants its answer in one piece.
func (s *Server) whole(w http.ResponseWriter, r *http.Request, c *call) {
	if bad := s.submit(c); bad != nil {
		refuse(w, bad)
		return
	}
	for {
		select {
		case <-r.Context().Done():
			s.abandon(c)
			return
		case <-c.woken:
		}
		over, failed := s.state(c)
		if failed != nil {
			refuse(w, failed)
			return
		}
		if over {
			answer(w, http.StatusOK, s.render(c))
			return
		}
	}
}

func (s *Server) state(c *call) (over bool, failed *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range c.tracks {
		if !t.over {
			return false, c.failed
		}
	}
	return true, c.failed
}

func (s *Server) render(c *call) []byte {
	output := 0
	for _, t := range c.tracks {
		output += t.output
	}
	b := fmt.Appendf(nil, `{"id":%s,"object":"%s","created":%d,"model":%s,`, quote(c.id), objects[c.route], c.created, quote(s.cfg.Model))
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null`, c.promptTokens(), c.promptTokens()+output, output)
	if c.route == embeddings {
		b = append(b, `"data":[`...)
		for i, t := range c.tracks {
			b = appendComma(b, i)
			b = fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":%s}`, i, vector(t.text, c.base64))
		}
		return append(b, "],"+usage+"}}"...)
	}
	b = append(b, `"choices":[`...)
	for i, t := range c.tracks {
		b = appendComma(b, i)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		if c.route == chat {
			b = append(b, `,"message":{"role":"assistant","content":"`...)
		} else {
			b = append(b, `,"text":"`...)
		}
		for k := range t.output {
			b = s.appendToken(b, t, k)
		}
		if c.route == chat {
			b = append(b, `","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"`+t.reason()+`","stop_reason":null,"token_ids":null,"routed_experts":null}`...)
		} else {
			b = append(b, `","logprobs":null,"finish_reason":"`+t.reason()+`","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}`...)
		}
	}
	b = append(b, `],"service_tier":null,"system_fingerprint":"`+fingerprint+`",`+usage+`,"completion_tokens_details":null},`...)
	if c.route == chat {
		b = append(b, `"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,`...)
	}
	return append(b, `"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
}

var objects = map[route]string{chat: "chat.completion", completions: "text_completion", embeddings: "list"}

func (t *track) reason() string {
	if t.stops {
		return "stop"
	}
	return "length"
}

// promptTokens counts each prompt once, however many choices it has.
func (c *call) promptTokens() int {
	n := 0
	for _, p := range c.prompts {
		n += p.tokens
	}
	return n
}

func appendComma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}

// dimensions of a simulated embedding.
const dimensions = 16

// vector is a unit vector drawn from the text's hash.
func vector(text uint64, encoded bool) string {
	var v [dimensions]float32
	norm := 0.0
	for i := range v {
		x := float64(int64(mix(text+uint64(i)))) / (1 << 63)
		v[i] = float32(x)
		norm += x * x
	}
	raw := make([]byte, 0, 4*dimensions)
	list := []byte{'['}
	for i, x := range v {
		x /= float32(math.Sqrt(norm))
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		list = strconv.AppendFloat(appendComma(list, i), float64(x), 'g', -1, 32)
	}
	if encoded {
		return `"` + base64.StdEncoding.EncodeToString(raw) + `"`
	}
	return string(append(list, ']'))
}
