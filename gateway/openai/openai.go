// Package openai reads what the gateway acts on out of the body of an OpenAI API
// request, and measures its prompt, in place: everything else in it is the engine's
// business.
package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

const (
	maxDepth       = 256     // nesting of a body; the JSON reader is recursive, so this bounds its stack
	maxModelName   = 256     // bytes
	longestToken   = 256     // bytes; the longest tokens in use are runs of 128 spaces
	maxSequences   = 1 << 14 // n x prompts; the engine's own limit is far below
	maxPriority    = 1 << 30
	maxServiceTier = 64      // bytes
	maxTokens      = 1 << 24 // any larger max_tokens means "no limit"
)

// Embedding is the kind of requests that produce no tokens.
const Embedding = "embedding"

// Request is what a body says. Body is passed on byte for byte.
type Request struct {
	Kind      string // as given to Parse: "chat", "completion" or Embedding; lane.Key.Type
	Body      []byte
	Model     string // 1 to 256 bytes
	Stream    bool
	MaxTokens int // 0 = not limited
	Sequences int // prompts x max(n, best_of), 1 to 16384
	TextBytes int // UTF-8 bytes of prompt text, all prompts
	Images    int
	TokenIDs  int // prompt tokens given as numbers: exact
	Longest   int // tokens that the longest prompt has at least

	Tools       bool   // it offers tools, or functions
	SystemBytes int    // UTF-8 bytes of system and developer messages, of TextBytes
	Priority    int    // lower goes first; 0 = none said
	ServiceTier string // "" = none said, or longer than any there is

	modelAt, modelLen int // where the model's name stands in Body, with its quotes
}

// routing are the top-level keys the gateway acts on. A second one, in any case,
// could make gateway and engine read different requests: JSON parsers disagree
// on which of two wins, and some match names in any case.
var routing = []string{"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of", "prompt", "messages", "input", "priority", "service_tier"}

// Fault is why a request cannot be understood.
type Fault struct {
	Param   string // the body's key at fault; "" = none
	Message string // for the client; of the body it has names of keys only
}

func faultf(param, format string, args ...any) *Fault {
	return &Fault{Param: param, Message: fmt.Sprintf(format, args...)}
}

// Parse reads body, which must not change afterwards. With a Fault the Request holds
// what was read before it.
func Parse(kind string, body []byte) (Request, *Fault) {
	p := Request{Kind: kind, Body: body}
	bad := p.parse()
	return p, bad
}

func (p *Request) parse() *Fault {
	text := unsafe.String(unsafe.SliceData(p.Body), len(p.Body)) // saves a copy of up to 32 MiB
	if depth(text) > maxDepth {
		return faultf("", "The body nests deeper than %d levels.", maxDepth)
	}
	if !gjson.Valid(text) {
		return faultf("", "The body is not valid JSON.")
	}
	root := gjson.Parse(text)
	if !root.IsObject() {
		return faultf("", "The body must be a JSON object.")
	}
	var fields [12]gjson.Result // by position in routing
	var seen [12]bool
	tools := 0
	var bad *Fault
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		for i, want := range routing {
			if !strings.EqualFold(name, want) {
				continue
			}
			if seen[i] {
				bad = faultf(want, "The key '%s' appears twice (names are compared in any case). Send it once.", want)
				return false
			}
			if seen[i] = true; name == want && value.Type != gjson.Null {
				fields[i] = value
			}
		}
		if name == "tools" || name == "functions" {
			tools += len(value.Raw)
			p.Tools = p.Tools || value.IsArray() && len(value.Raw) > len("[]")
		}
		return true
	})
	if bad != nil {
		return bad
	}
	p.TextBytes = tools
	if bad = p.scalars(&fields); bad != nil {
		return bad
	}
	prompts := p.prompt(fields[7], fields[8], fields[9])
	p.Sequences = min(p.Sequences*max(prompts, 1), maxSequences)
	return nil
}

// scalars reads the plain fields. Engines coerce some wrong types ("true", 1), so
// a wrong type is refused here: guessing would let the two read differently.
func (p *Request) scalars(fields *[12]gjson.Result) *Fault {
	model, stream := fields[0], fields[1]
	if model.Type != gjson.String || model.Str == "" {
		return faultf("model", "The body needs \"model\", a non-empty string.")
	}
	if len(model.Str) > maxModelName {
		return faultf("model", "\"model\" is longer than %d bytes.", maxModelName)
	}
	p.Model = strings.Clone(model.Str)
	p.modelAt, p.modelLen = model.Index, len(model.Raw)
	switch stream.Type {
	case gjson.True:
		p.Stream = p.Kind != Embedding
	case gjson.False, gjson.Null:
	default:
		return faultf("stream", "\"stream\" must be true or false.")
	}
	var number [4]int // max_tokens, max_completion_tokens, n, best_of
	for i := range number {
		field := fields[3+i]
		if field.Type != gjson.Number && field.Exists() {
			return faultf(routing[3+i], "\"%s\" must be a number.", routing[3+i])
		}
		if field.Num >= 1 && field.Num < maxTokens {
			number[i] = int(field.Num)
		} else if i >= 2 && field.Num >= maxTokens {
			number[i] = maxSequences
		}
	}
	if p.MaxTokens = number[1]; p.MaxTokens == 0 {
		p.MaxTokens = number[0]
	}
	p.Sequences = min(max(number[2], number[3], 1), maxSequences)
	return p.wishes(fields[10], fields[11])
}

// wishes reads how urgent the request says it is.
func (p *Request) wishes(priority, serviceTier gjson.Result) *Fault {
	if priority.Exists() {
		if priority.Type != gjson.Number {
			return faultf("priority", "\"priority\" must be a number.")
		}
		p.Priority = int(min(max(priority.Num, -maxPriority), maxPriority))
	}
	if serviceTier.Exists() {
		if serviceTier.Type != gjson.String {
			return faultf("service_tier", "\"service_tier\" must be a string.")
		}
		if len(serviceTier.Str) <= maxServiceTier {
			p.ServiceTier = strings.Clone(serviceTier.Str)
		}
	}
	return nil
}

// Rename makes it a request for another model, in the body too, which is copied for it.
func (p *Request) Rename(name string) {
	quoted, _ := json.Marshal(name) // a string: cannot fail
	body := make([]byte, 0, len(p.Body)-p.modelLen+len(quoted))
	body = append(body, p.Body[:p.modelAt]...)
	body = append(body, quoted...)
	p.Body = append(body, p.Body[p.modelAt+p.modelLen:]...)
	p.Model, p.modelLen = name, len(quoted)
}

// prompt measures the prompt and returns how many prompts there are.
func (p *Request) prompt(prompt, messages, input gjson.Result) (prompts int) {
	if messages.IsArray() {
		messages.ForEach(func(_, m gjson.Result) bool {
			content, system := 0, false
			m.ForEach(func(key, value gjson.Result) bool {
				switch key.String() {
				case "role":
					system = value.Str == "system" || value.Str == "developer"
				case "content":
					before := p.TextBytes
					p.content(value)
					content += p.TextBytes - before
				case "tool_calls", "function_call", "reasoning_content":
					p.TextBytes += len(value.Raw)
				}
				return true
			})
			if system {
				p.SystemBytes += content
			}
			return true
		})
		return 1
	}
	if !prompt.Exists() {
		prompt = input
	}
	switch {
	case prompt.Type == gjson.String:
		p.text(prompt)
		return 1
	case prompt.IsArray():
		return p.promptList(prompt)
	}
	return 1
}

// promptList measures the list forms: texts, one list of token ids, or several.
func (p *Request) promptList(list gjson.Result) (prompts int) {
	ids := 0
	list.ForEach(func(_, item gjson.Result) bool {
		switch {
		case item.Type == gjson.String:
			prompts++
			p.text(item)
		case item.Type == gjson.Number:
			ids++
		case item.IsArray():
			prompts++
			p.ids(strings.Count(item.Raw, ",") + 1)
		default:
			prompts++
			p.TextBytes += len(item.Raw)
		}
		return true
	})
	if ids > 0 {
		prompts++
		p.ids(ids)
	}
	return prompts
}

// text measures one prompt given as text.
func (p *Request) text(prompt gjson.Result) {
	n := textLen(prompt.Raw)
	p.TextBytes += n
	p.Longest = max(p.Longest, n/longestToken)
}

// ids measures one prompt given as n token ids.
func (p *Request) ids(n int) {
	p.TokenIDs += n
	p.Longest = max(p.Longest, n)
}

// content measures a message: a text, or parts of which the texts count as bytes
// and everything else (image, audio, video) as one image, whatever its size.
func (p *Request) content(c gjson.Result) {
	if c.Type == gjson.String {
		p.TextBytes += textLen(c.Raw)
		return
	}
	if !c.IsArray() {
		return
	}
	c.ForEach(func(_, part gjson.Result) bool {
		if part.Type == gjson.String {
			p.TextBytes += textLen(part.Raw)
			return true
		}
		text, other := 0, false
		part.ForEach(func(key, value gjson.Result) bool {
			switch key.String() {
			case "type":
				other = value.Str != "text"
			case "text", "refusal", "thinking":
				text += textLen(value.Raw)
			}
			return true
		})
		if other && text == 0 {
			p.Images++
		}
		p.TextBytes += text
		return true
	})
}

// textLen is the UTF-8 length of a JSON string without decoding it: an escape is
// one byte, a \u escape three (what most of them take).
func textLen(raw string) int {
	n := max(len(raw)-2, 0)
	for {
		i := strings.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return n
		}
		if raw[i+1] == 'u' {
			n -= 3
		} else {
			n--
		}
		raw = raw[i+2:]
	}
}

// depth is the deepest nesting of brackets outside strings. It reads any bytes;
// long strings, which most of a body is, are skipped quickly.
func depth(text string) int {
	level, deepest := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '[', '{':
			level++
			deepest = max(deepest, level)
		case ']', '}':
			level--
		case '"':
			end := closingQuote(text[i+1:])
			if end < 0 {
				return deepest
			}
			i += 1 + end
		}
	}
	return deepest
}

// closingQuote is the place of the first quote that no backslash escapes, or -1.
func closingQuote(s string) int {
	for from := 0; ; {
		i := strings.IndexByte(s[from:], '"')
		if i < 0 {
			return -1
		}
		i += from
		slashes := 0
		for slashes < i && s[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
		from = i + 1
	}
}
