package simengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

type route uint8

const (
	chat route = iota + 1
	completions
	embeddings
)

// maxSequences bounds n times the number of prompts of one request; vLLM bounds n so.
const maxSequences = 16384

// call is one HTTP request for the engine.
type call struct {
	route      route
	id         string
	created    int64
	stream     bool
	usage      bool // a last event with the usage
	continuous bool // usage in every event
	base64     bool // embeddings as base64
	prompts    []prompt
	n          int
	tracks     []*track // prompt by prompt, n of each; the index is the choice's

	woken  chan struct{} // size 1: tracks have moved or failed is set
	failed *apiError     // guarded by Server.mu
}

type prompt struct {
	tokens int
	hash   uint64
}

func (c *call) nudge() {
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// parse makes a call of a body, with vLLM's answer to one it would refuse.
func (s *Server) parse(r route, body []byte) (*call, *apiError) {
	root, bad := parseJSON(body)
	if bad != nil {
		return nil, bad
	}
	p := params{root: root}
	c := &call{
		route:      r,
		n:          p.number("n", 1),
		stream:     r != embeddings && root.Get("stream").Bool(),
		usage:      root.Get("stream_options.include_usage").Bool(),
		base64:     root.Get("encoding_format").String() == "base64",
		woken:      make(chan struct{}, 1),
		continuous: root.Get("stream_options.continuous_usage_stats").Bool(),
	}
	c.continuous = c.continuous && c.usage
	limit := p.limit(r)
	least := p.number("min_tokens", 0)
	field := map[route]string{chat: "messages", completions: "prompt", embeddings: "input"}[r]
	if r != completions && !root.Get(field).Exists() {
		p.fail(invalid("missing", "body."+field, "Field required", dict(root), ""))
	}
	c.prompts = s.prompts(r, root.Get(field), &p)
	if model := root.Get("model").String(); model != "" && model != s.cfg.Model {
		p.fail(errModel(model, s.cfg.Model))
	}
	switch {
	case c.n < 1:
		p.fail(badRequest("", fmt.Sprintf("n must be at least 1, got %d.", c.n)))
	case c.n > maxSequences || c.n*len(c.prompts) > maxSequences:
		p.fail(badRequest("", fmt.Sprintf("n must be at most %d, got %d.", maxSequences, c.n)))
	case p.named && limit < 1:
		p.fail(errLimit(limit))
	case limit >= 0 && least > limit:
		p.fail(badRequest("", fmt.Sprintf("min_tokens must be less than or equal to max_tokens=%d, got %d.", limit, least)))
	}
	if p.bad != nil {
		return nil, p.bad
	}
	return c, s.plan(c, root, limit, least)
}

// plan decides how long every choice will be.
func (s *Server) plan(c *call, root gjson.Result, limit, least int) *apiError {
	context := s.cfg.Engine.MaxModelLen
	for _, p := range c.prompts {
		if p.tokens > context {
			return errContext(context)
		}
		if p.tokens == context && c.route != embeddings {
			return errLimit(0)
		}
	}
	s.mu.Lock()
	s.calls++
	order := s.calls
	s.mu.Unlock()
	seed := s.cfg.Seed
	switch own := root.Get("seed"); {
	case own.Type == gjson.Number:
		seed ^= own.Uint()
	case !root.Get("temperature").Exists() || root.Get("temperature").Float() != 0:
		seed ^= order << 32
	}
	c.tracks = make([]*track, 0, len(c.prompts)*c.n)
	for i, p := range c.prompts {
		most := context - p.tokens
		if limit >= 0 {
			most = min(limit, most)
		}
		for j := range c.n {
			t := &track{call: c, prompt: i, promptSize: p.tokens, text: mix(p.hash ^ mix(seed^uint64(j)<<16)), output: most}
			if natural := s.naturalLength(t.text); !root.Get("ignore_eos").Bool() && natural > 0 {
				if natural = max(natural, least); natural <= most {
					t.output, t.stops = natural, true
				}
			}
			if c.route == embeddings {
				t.output, t.stops = 0, true
			}
			c.tracks = append(c.tracks, t)
		}
	}
	return nil
}

// naturalLength draws where an answer stops by itself; 0 = never.
func (s *Server) naturalLength(text uint64) int {
	mean := s.cfg.MeanOutput
	if mean == 0 {
		return 0
	}
	if mean == 1 {
		return 1
	}
	u := (float64(mix(text)>>11) + 1) / (1 << 53) // 0 < u <= 1
	return 1 + int(math.Log(u)/math.Log(1-1/mean))
}

func parseJSON(body []byte) (gjson.Result, *apiError) {
	if !gjson.ValidBytes(body) {
		at, why := len(body), "Expecting value"
		var syntax *json.SyntaxError
		if errors.As(json.Unmarshal(body, new(any)), &syntax) && int(syntax.Offset) <= len(body) && !strings.HasPrefix(syntax.Error(), "unexpected end") {
			at = int(syntax.Offset) - 1 // of the byte that doesn't fit
			if strings.Contains(syntax.Error(), "object key") {
				why = "Expecting property name enclosed in double quotes"
			}
		}
		return gjson.Result{}, invalid("json_invalid", "body."+strconv.Itoa(at), "JSON decode error", "<dict of 0 items>", why)
	}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		input := root.String()
		if root.IsArray() {
			input = fmt.Sprintf("<list of %d items>", len(root.Array()))
		}
		return root, invalid("model_attributes_type", "body", "Input should be a valid dictionary or object to extract fields from", input, "")
	}
	return root, nil
}

func dict(root gjson.Result) string { return fmt.Sprintf("<dict of %d items>", len(root.Map())) }

// params reads fields and keeps the first complaint.
type params struct {
	root  gjson.Result
	bad   *apiError
	named bool // the client gave a limit
}

func (p *params) fail(bad *apiError) {
	if p.bad == nil {
		p.bad = bad
	}
}

func (p *params) number(name string, otherwise int) int {
	v := p.root.Get(name)
	switch v.Type {
	case gjson.Null:
		return otherwise
	case gjson.Number:
		if v.Num != math.Trunc(v.Num) || math.Abs(v.Num) > 1<<53 {
			p.fail(invalid("int_from_float", "body."+name, "Input should be a valid integer, got a number with a fractional part", v.Raw, ""))
		}
		return int(v.Num)
	case gjson.String:
		if n, err := strconv.Atoi(v.Str); err == nil {
			return n
		}
		p.fail(invalid("int_parsing", "body."+name, "Input should be a valid integer, unable to parse string as an integer", v.Str, ""))
	default:
		p.fail(invalid("int_type", "body."+name, "Input should be a valid integer", v.Raw, ""))
	}
	return otherwise
}

// limit is the output limit the client gave, -1 for none: 16 for completions, the
// rest of the context for chat.
func (p *params) limit(r route) int {
	names := []string{"max_tokens"}
	if r == chat {
		names = []string{"max_completion_tokens", "max_tokens"}
	}
	for _, name := range names {
		if p.root.Get(name).Type != gjson.Null {
			p.named = true
			return p.number(name, -1)
		}
	}
	if r == completions {
		return 16
	}
	return -1
}
