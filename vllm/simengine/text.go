package simengine

import (
	"github.com/tidwall/gjson"
)

// prompts counts the tokens of a request's prompts: messages, a string, a list of
// strings, token ids, a list of lists.
func (s *Server) prompts(r route, v gjson.Result, p *params) []prompt {
	if r == chat {
		if !v.IsArray() && v.Exists() {
			p.fail(invalid("list_type", "body.messages", "Input should be a valid list", v.String(), ""))
		}
		return []prompt{s.chatPrompt(v)}
	}
	if !v.IsArray() {
		if r == completions && v.String() == "" {
			p.fail(badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"))
		}
		return []prompt{s.textPrompt(v.String())}
	}
	list := v.Array()
	if len(list) == 0 {
		p.fail(badRequest("", "You must pass at least one prompt"))
		return nil
	}
	if list[0].Type == gjson.Number {
		return []prompt{{tokens: len(list), hash: hash(offset, v.Raw)}}
	}
	out := make([]prompt, 0, len(list))
	for _, one := range list {
		if ids := one.Array(); one.IsArray() && len(ids) > 0 {
			out = append(out, prompt{tokens: len(ids), hash: hash(offset, one.Raw)})
		} else {
			out = append(out, s.textPrompt(one.String()))
		}
	}
	return out
}

func (s *Server) textPrompt(text string) prompt {
	return prompt{tokens: s.tokens(len(text)), hash: hash(offset, text)}
}

// chatPrompt applies the captured model's template: "role: text\n" for every
// message, then "assistant: ".
func (s *Server) chatPrompt(messages gjson.Result) prompt {
	size, h := 0, uint64(offset)
	add := func(text string) {
		size += len(text)
		h = hash(h, text)
	}
	for _, m := range messages.Array() {
		add(m.Get("role").String())
		add(": ")
		if content := m.Get("content"); content.IsArray() {
			for _, part := range content.Array() {
				add(part.Get("text").String())
			}
		} else {
			add(content.String())
		}
		add("\n")
	}
	add("assistant: ")
	return prompt{tokens: s.tokens(size), hash: h}
}

func (s *Server) tokens(size int) int {
	return max(1, (size+s.cfg.BytesPerToken-1)/s.cfg.BytesPerToken)
}

// alphabet has 64 letters that JSON never escapes.
const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,"

// appendToken appends the text of the i-th token of an answer: a word of exactly
// one token's bytes, and nothing for the token that stops it.
func (s *Server) appendToken(dst []byte, t *track, i int) []byte {
	if t.stops && i+1 == t.output {
		return dst
	}
	bits := mix(t.text + uint64(i))
	for j := range s.cfg.BytesPerToken {
		if j == 0 && s.cfg.BytesPerToken > 1 {
			dst = append(dst, ' ')
			continue
		}
		if j%10 == 0 {
			bits = mix(bits)
		}
		dst = append(dst, alphabet[bits&63])
		bits >>= 6
	}
	return dst
}

// offset and hash are FNV-1a, kept here because the hash goes on over several strings.
const offset = 14695981039346656037

func hash(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix is splitmix64's finaliser: neighbouring inputs give unrelated outputs.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
