package openai

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	type want struct {
		Model                                                string
		Stream                                               bool
		MaxTokens, Sequences, TextBytes, Images, TokenNumber int
	}
	for _, c := range []struct {
		name, kind, body string
		want             want
	}{
		{"smallest", "chat", `{"model":"q"}`, want{Model: "q", Sequences: 1}},
		{"chat", "chat", `{"model":"q","stream":true,"max_tokens":9,"messages":[{"role":"system","content":"ab"},{"role":"user","content":"cde"}]}`, want{"q", true, 9, 1, 5, 0, 0}},
		{"new name of max_tokens wins", "chat", `{"model":"q","max_tokens":9,"max_completion_tokens":5}`, want{Model: "q", MaxTokens: 5, Sequences: 1}},
		{"parts", "chat", `{"model":"q","messages":[{"role":"user","content":[{"type":"text","text":"abc"},{"type":"image_url","image_url":{"url":"data:AAAAAAAA"}},{"type":"input_audio","input_audio":{}}]}]}`, want{"q", false, 0, 1, 3, 2, 0}},
		{"tools and calls", "chat", `{"model":"q","tools":[{"a":1}],"messages":[{"role":"assistant","content":null,"tool_calls":[1]}]}`, want{"q", false, 0, 1, 9 + 3, 0, 0}},
		{"n and best_of", "completion", `{"model":"q","prompt":["a","bc"],"n":2,"best_of":3}`, want{"q", false, 0, 6, 3, 0, 0}},
		{"token ids", "completion", `{"model":"q","prompt":[1,2,3]}`, want{"q", false, 0, 1, 0, 0, 3}},
		{"lists of token ids", "completion", `{"model":"q","prompt":[[1,2],[3]]}`, want{"q", false, 0, 2, 0, 0, 3}},
		{"embedding", "embedding", `{"model":"q","input":["a","b"],"stream":true}`, want{"q", false, 0, 2, 2, 0, 0}},
		{"nulls are absent", "chat", `{"model":"q","stream":null,"max_tokens":null,"n":null}`, want{Model: "q", Sequences: 1}},
		{"escapes", "completion", `{"model":"q","prompt":"a\nb\u4f60\"c"}`, want{"q", false, 0, 1, 8, 0, 0}},
		{"odd numbers", "chat", `{"model":"q","n":-3,"max_tokens":0}`, want{Model: "q", Sequences: 1}},
		{"huge numbers", "chat", `{"model":"q","n":1e300,"max_tokens":1e300}`, want{Model: "q", Sequences: maxSequences}},
		{"other case is another key", "chat", `{"model":"q","Stream":true}`, want{Model: "q", Sequences: 1}},
		{"escaped name", "chat", `{"mod\u0065l":"q"}`, want{Model: "q", Sequences: 1}},
		{"twice where it does not matter", "chat", `{"model":"q","top_p":1,"top_p":2,"metadata":{"model":1,"model":2}}`, want{Model: "q", Sequences: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, bad := Parse(c.kind, []byte(c.body))
			if bad != nil {
				t.Fatalf("fault %q", bad.Message)
			}
			got := want{p.Model, p.Stream, p.MaxTokens, p.Sequences, p.TextBytes, p.Images, p.TokenIDs}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestWishes(t *testing.T) {
	type want struct {
		Tools       bool
		SystemBytes int
		Priority    int
		ServiceTier string
	}
	for _, c := range []struct {
		body string
		want want
	}{
		{`{"model":"q"}`, want{}},
		{`{"model":"q","tools":[]}`, want{}},
		{`{"model":"q","tools":[{}],"priority":-3,"service_tier":"flex"}`, want{true, 0, -3, "flex"}},
		{`{"model":"q","messages":[{"content":"abc","role":"system"},{"role":"developer","content":[{"type":"text","text":"de"}]},{"role":"user","content":"fghi"}]}`, want{SystemBytes: 5}},
		{`{"model":"q","priority":1e300,"service_tier":"` + strings.Repeat("x", 65) + `"}`, want{Priority: maxPriority}},
		{`{"model":"q","priority":null,"service_tier":null}`, want{}},
	} {
		p, bad := Parse("chat", []byte(c.body))
		if bad != nil {
			t.Fatalf("%s: fault %q", c.body, bad.Message)
		}
		if diff := cmp.Diff(c.want, want{p.Tools, p.SystemBytes, p.Priority, p.ServiceTier}); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.body, diff)
		}
	}
}

func TestRename(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"q"}`: `{"model":"new \"one\""}`,
		` { "a": {"model": "q"}, "model" :  "qq" , "b":1}`:                   ` { "a": {"model": "q"}, "model" :  "new \"one\"" , "b":1}`,
		`{"messages":[{"content":"\"model\":\"q\""}],"m\u006fdel":"\u0071"}`: `{"messages":[{"content":"\"model\":\"q\""}],"m\u006fdel":"new \"one\""}`,
	} {
		given := []byte(body)
		p, bad := Parse("chat", given)
		if bad != nil {
			t.Fatalf("%s: fault %q", body, bad.Message)
		}
		p.Rename(`new "one"`)
		if string(p.Body) != want || p.Model != `new "one"` || string(given) != body {
			t.Errorf("%s became %s, model %q; want %s, and what was given as it was", body, p.Body, p.Model, want)
		}
		p.Rename("q")
		if again, bad := Parse("chat", p.Body); bad != nil || again.Model != "q" {
			t.Errorf("%s, renamed twice: %s", body, p.Body)
		}
	}
}

func TestParseFaults(t *testing.T) {
	for _, c := range []struct{ body, param string }{
		{``, ""},
		{`[]`, ""},
		{`{"model":"q"`, ""},
		{`{"model":"q"} x`, ""},
		{`{"model":"q","messages":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, ""},
		{strings.Repeat("[", 1<<20), ""},
		{`{"model":""}`, "model"},
		{`{"model":7}`, "model"},
		{`{"MODEL":"q"}`, "model"},
		{`{"model":"` + strings.Repeat("x", 257) + `"}`, "model"},
		{`{"model":"a","model":"b"}`, "model"},
		{`{"model":"a","model":null}`, "model"},
		{`{"model":"a","mod\u0065l":"b"}`, "model"},
		{`{"model":"a","MAX_TO\u212aENS":1,"max_tokens":1}`, "max_tokens"}, // the Kelvin sign folds to k
		{`{"model":"a","stream":"true"}`, "stream"},
		{`{"model":"a","stream":1}`, "stream"},
		{`{"model":"a","n":"2"}`, "n"},
		{`{"model":"a","priority":"2"}`, "priority"},
		{`{"model":"a","service_tier":2}`, "service_tier"},
		{`{"model":"a","priority":1,"priority":2}`, "priority"},
		{`{"model":"a","stream_options":{},"Stream_Options":{}}`, "stream_options"},
	} {
		name := c.body[:min(len(c.body), 40)]
		if p, bad := Parse("chat", []byte(c.body)); bad == nil || bad.Param != c.param {
			t.Errorf("%s: fault %+v, request %+v, want a fault of %q", name, bad, p, c.param)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"model":"q","stream":true,"messages":[{"role":"user","content":"hi"}]}`, `{"model":"q","prompt":[[1],[2,3]],"n":2}`, `{"model":"a","MODEL":"b"}`, `{"model":"\ud83d\ude00","messages":[{"content":[{"type":"text","text":"\\\""}]}]}`, `{"a":"\\","model":"q"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, bad := Parse("chat", body)
		if bad != nil {
			if bad.Message == "" || !utf8.ValidString(bad.Message) {
				t.Errorf("fault text %q", bad.Message)
			}
			return
		}
		if p.Model == "" || p.Sequences < 1 || p.Sequences > maxSequences || p.MaxTokens < 0 || p.TextBytes < 0 || p.TextBytes > len(body) || p.TokenIDs > len(body) {
			t.Errorf("%q: %+v", body, p)
		}
		// What another parser makes of it must route the same way.
		var other map[string]json.RawMessage
		if json.Unmarshal(body, &other) != nil {
			t.Fatalf("accepted %q, which encoding/json refuses", body)
		}
		var model string
		if utf8.Valid(body) && json.Unmarshal(other["model"], &model) == nil && model != p.Model {
			t.Errorf("%q: model %q, encoding/json says %q", body, p.Model, model)
		}
		p.Rename("other")
		if again, bad := Parse("chat", p.Body); bad != nil || again.Model != "other" {
			t.Errorf("%q renamed is %q", body, p.Body)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	body := []byte(`{"model":"q","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word and word again ", 400) + `"}],"max_tokens":8}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, bad := Parse("chat", body); bad != nil {
			b.Fatal(bad)
		}
	}
}
