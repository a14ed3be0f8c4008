package openai

import (
	"testing"
	"unicode/utf8"
)

func TestTooLong(t *testing.T) {
	for body, want := range map[string]bool{
		`{"error":{"message":"This model's maximum context length is 1024 tokens. However, your prompt contains at least 1025 input tokens.","type":"BadRequestError","code":400}}`: true,
		`{"object":"error","message":"This model's maximum context length is 1024 tokens.","code":400}`:                                                                             true,
		`{"object":"error","message":"The input (9 tokens) is longer than the model's context length (8 tokens)."}`:                                                                 true,
		`{"error":{"message":"Prompt length (9) exceeds maximum model length of 8."}}`:                                                                                              true,
		`{"error":{"message":"no","code":"context_length_exceeded"}}`:                                                                                                               true,
		`{"error":{"message":"The model does not exist.","code":404}}`:                                                                                                              false,
		`{"error":"context length"}`: false,
		`{"detail":"Not Found"}`:     false,
		``:                           false,
		`nonsense`:                   false,
	} {
		if got := TooLong([]byte(body)); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func TestQuestion(t *testing.T) {
	for _, c := range []struct{ kind, body, want, param string }{
		{"chat", `{"model":"q","stream":true,"n":3,"tools":[{}],"messages":[ {"role":"user","content":"a\"b"}]}`, `{"model":"g \"1\"","temperature":0,"max_tokens":5,"messages":[ {"role":"user","content":"a\"b"}]}`, ""},
		{"chat", `{"model":"q","m\u0065ssages":[]}`, `{"model":"g \"1\"","temperature":0,"max_tokens":5,"messages":[]}`, ""},
		{"chat", `{"model":"q","prompt":"a"}`, "", "messages"},
		{"completion", `{"model":"q","prompt":"a\n","messages":[{"role":"user","content":"harmless"}]}`, `{"model":"g \"1\"","temperature":0,"max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a\n"}]}]}`, ""},
		{"completion", `{"model":"q","prompt":["a","b"]}`, `{"model":"g \"1\"","temperature":0,"max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, ""},
		{"completion", `{"model":"q","prompt":[1,2]}`, "", "prompt"},
		{"completion", `{"model":"q","prompt_embeds":"AAAA"}`, "", "prompt"},
		{Embedding, `{"model":"q","input":"a","prompt":"b"}`, `{"model":"g \"1\"","temperature":0,"max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`, ""},
	} {
		p, bad := Parse(c.kind, []byte(c.body))
		if bad != nil {
			t.Fatalf("%s: %q", c.body, bad.Message)
		}
		q, bad := p.Question(`g "1"`, 5)
		switch {
		case c.param != "":
			if bad == nil || bad.Param != c.param {
				t.Errorf("%s: fault %+v, want one of %q", c.body, bad, c.param)
			}
		case bad != nil:
			t.Errorf("%s: fault %q", c.body, bad.Message)
		case string(q.Body) != c.want || q.Model != `g "1"` || q.Kind != "chat" || q.MaxTokens != 5 || q.Stream || q.Sequences != 1:
			t.Errorf("%s: %+v\n%s, want\n%s", c.body, q, q.Body, c.want)
		}
	}
}

func TestAnswer(t *testing.T) {
	for body, want := range map[string]string{
		`{"choices":[{"message":{"content":" Safe\n"}}]}`: "safe",
		`{"choices":[{"message":{"content":null}}]}`:      "",
		`{"choices":[]}`: "",
		``:               "",
	} {
		if got := Answer([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	for _, seed := range []string{`{"model":"q","messages":[{"role":"user","content":"hi"}]}`, `{"model":"q","prompt":["a"],"input":"b"}`, `{"model":"q","prompt":[1]}`, `{"error":{"message":"context length"}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		TooLong(body)
		if got := Answer(body); utf8.Valid(body) && !utf8.ValidString(got) {
			t.Errorf("%q: answer %q", body, got)
		}
		for _, kind := range []string{"chat", "completion", Embedding} {
			p, bad := Parse(kind, body)
			if bad != nil {
				continue
			}
			if q, bad := p.Question("g", 5); bad == nil && (q.Model != "g" || q.Stream || q.MaxTokens != 5) {
				t.Errorf("%q: question %s", body, q.Body)
			}
		}
	})
}
