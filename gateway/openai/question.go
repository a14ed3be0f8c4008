package openai

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// TooLong reports whether an engine's refusal is about the length of the prompt: by its
// code, or by the words that vLLM and SGLang have for it.
func TooLong(body []byte) bool {
	e := gjson.GetBytes(body, "error")
	if !e.IsObject() {
		e = gjson.ParseBytes(body) // vLLM before 0.10.1
	}
	if e.Get("code").Str == "context_length_exceeded" {
		return true
	}
	text := strings.ToLower(e.Get("message").Str)
	for _, words := range []string{"context length", "maximum model length", "max_model_len"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// ChatPath is where questions go.
const ChatPath = "/v1/chat/completions"

// Question is a chat of its own that asks model about the prompt of p: its messages as
// they are, or its texts as one message of a user. max bounds the answer, in tokens.
func (p *Request) Question(model string, most int) (Request, *Fault) {
	root := gjson.ParseBytes(p.Body)
	messages := root.Get("messages").Raw
	if p.Kind != "chat" {
		prompt := root.Get("prompt")
		if p.Kind == Embedding {
			prompt = root.Get("input")
		}
		var bad *Fault
		if messages, bad = userMessage(prompt); bad != nil {
			return Request{}, bad
		}
	}
	if messages == "" {
		return Request{}, faultf("messages", "The body needs \"messages\".")
	}
	name, _ := json.Marshal(model) // a string: cannot fail
	body := make([]byte, 0, len(messages)+len(name)+80)
	body = append(append(body, `{"model":`...), name...)
	body = append(append(body, `,"temperature":0,"max_tokens":`...), strconv.Itoa(most)...)
	body = append(append(append(body, `,"messages":`...), messages...), '}')
	return Parse("chat", body)
}

// userMessage makes messages of a prompt that is one text or a list of them.
func userMessage(prompt gjson.Result) (string, *Fault) {
	texts := []gjson.Result{prompt}
	if prompt.IsArray() {
		texts = prompt.Array()
	}
	var b strings.Builder
	b.WriteString(`[{"role":"user","content":[`)
	for i, text := range texts {
		if text.Type != gjson.String {
			return "", faultf("prompt", "This service reads prompts before they are answered, and can read text only.")
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"type":"text","text":` + text.Raw + `}`)
	}
	b.WriteString(`]}]`)
	return b.String(), nil
}

// Answer is the text of a whole answer to a Question, in lower case and without white
// space around it; "" where there is none.
func Answer(body []byte) string {
	return strings.ToLower(strings.TrimSpace(gjson.GetBytes(body, "choices.0.message.content").Str))
}
