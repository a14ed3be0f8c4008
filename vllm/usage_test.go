package vllm

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// without removes usage from a captured stream by other means than the code does:
// every usage member but the last event's, and that event too if final is true.
func without(t testing.TB, name string, final bool) string {
	t.Helper()
	member := regexp.MustCompile(`,"usage":\{[^{}]*\}`)
	var kept strings.Builder
	for _, e := range strings.SplitAfter(fixtureBody(t, name), "\n\n") {
		switch {
		case !strings.Contains(e, `"choices":[]`):
			kept.WriteString(member.ReplaceAllString(e, ""))
		case !final:
			kept.WriteString(e)
		}
	}
	return kept.String()
}

func TestInject(t *testing.T) {
	const both = `{"include_usage":true,"continuous_usage_stats":true}`
	tests := []struct {
		name, body, want string
		asked            asked
	}{
		{"absent", `{"model":"m","stream":true}`, `{"stream_options":` + both + `,"model":"m","stream":true}`, asked{injected: true}},
		{"absent, spaced", " \n{ \"model\" : \"m\" }\n", " \n{\"stream_options\":" + both + ", \"model\" : \"m\" }\n", asked{injected: true}},
		{"empty body", `{}`, `{"stream_options":` + both + `}`, asked{injected: true}},
		{"null", ` {"stream_options": null, "n":2}`, ` {"stream_options": ` + both + `, "n":2}`, asked{injected: true}},
		{"named in a string only", `{"p":"\"stream_options\":{}"}`, `{"stream_options":` + both + `,"p":"\"stream_options\":{}"}`, asked{injected: true}},
		{"empty options", `{"stream_options":{},"n":2}`, `{"stream_options":` + both + `,"n":2}`, asked{injected: true}},
		{
			"other fields kept", `{"stream_options":{"x": [1, 2],"include_obfuscation":false },"a":1e2}`,
			`{"stream_options":{"x": [1, 2],"include_obfuscation":false ,"include_usage":true,"continuous_usage_stats":true},"a":1e2}`,
			asked{injected: true},
		},
		{"final asked", `{"stream_options":{"include_usage": true}}`, `{"stream_options":{"include_usage": true,"continuous_usage_stats":true}}`, asked{injected: true, final: true}},
		{"refused by the client", `{"stream_options":{"include_usage":false}}`, `{"stream_options":` + both + `}`, asked{injected: true}},
		{"continuous alone asks nothing", `{"stream_options":{"continuous_usage_stats":true}}`, `{"stream_options":{"continuous_usage_stats":true,"include_usage":true}}`, asked{injected: true}},
		{"both asked", `{"stream_options":` + both + `}`, `{"stream_options":` + both + `}`, asked{final: true, continuous: true}},
		{"escaped name", `{"stream\u005foptions":{"include_usage":true}}`, `{"stream\u005foptions":{"include_usage":true,"continuous_usage_stats":true}}`, asked{injected: true, final: true}},

		{"named twice", `{"stream_options":{},"stream_options":null}`, ``, asked{}},
		{"option named twice", `{"stream_options":{"include_usage":true,"include_usage":false}}`, ``, asked{}},
		{"not a flag", `{"stream_options":{"include_usage":"yes"}}`, ``, asked{}},
		{"not an object", `{"stream_options":[1]}`, ``, asked{}},
		{"a string", `{"stream_options":"{}"}`, ``, asked{}},
		{"not JSON", `nonsense`, ``, asked{}},
		{"no bytes", ``, ``, asked{}},
		{"an array", `[{"stream_options":{}}]`, ``, asked{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == "" {
				tt.want = tt.body
			}
			before := []byte(tt.body)
			got, asked := inject(before)
			if string(got) != tt.want {
				t.Errorf("sent\n%s\nwant\n%s", got, tt.want)
			}
			if asked != tt.asked {
				t.Errorf("asked = %+v, want %+v", asked, tt.asked)
			}
			if string(before) != tt.body {
				t.Errorf("the client's bytes changed to %s", before)
			}
		})
	}
}

// value draws JSON text with odd spacing, as a client may write it.
func value(t *rapid.T, depth int) string {
	blank := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "blank")
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	if depth == 0 {
		kind = min(kind, 3)
	}
	switch kind {
	case 0:
		return blank + rapid.SampledFrom([]string{"1", "-2.50e+1", "12345678901234567890"}).Draw(t, "number")
	case 1:
		return blank + rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "word") + blank
	case 2, 3:
		return blank + rapid.SampledFrom([]string{`""`, `"a\"b"`, `"{\"stream_options\":"`, `"\u00e9é,}"`, `"\\"`}).Draw(t, "string")
	case 4:
		return blank + "[" + strings.Join(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string { return value(t, depth-1) }), 0, 3).Draw(t, "list"), ",") + blank + "]"
	default:
		return object(t, depth-1, rapid.SampledFrom([]string{"model", "n", "usage", "stream_options", "include_usage"}), blank)
	}
}

func object(t *rapid.T, depth int, names *rapid.Generator[string], blank string) string {
	keys := rapid.SliceOfNDistinct(names, 0, 4, rapid.ID).Draw(t, "keys")
	members := make([]string, len(keys))
	for i, k := range keys {
		members[i] = blank + `"` + k + `"` + blank + ":" + value(t, depth)
	}
	return "{" + strings.Join(members, blank+",") + blank + "}"
}

// TestInjectChangesNothingElse holds for any body: outside stream_options every
// byte stays, inside it every other member stays, and the engine reads true twice.
func TestInjectChangesNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SampledFrom([]string{"model", "messages", "stream", "n"})
		blank := rapid.SampledFrom([]string{"", " ", "\r\n"}).Draw(t, "blank")
		body := object(t, 2, names, blank)
		options := rapid.Custom(func(t *rapid.T) string {
			return object(t, 1, rapid.SampledFrom([]string{"include_usage", "continuous_usage_stats", "x", "y"}), blank)
		}).Draw(t, "options")
		head, tail := "", ""
		switch rapid.IntRange(0, 3).Draw(t, "place") {
		case 0:
			options = ""
		case 1:
			head, tail = `{"stream_options":`+blank, `,"a":[1]}`
		case 2:
			head, tail = `{"a":"\"}",`+blank+`"stream_options":`, `}`
		default:
			head, tail = `{"before":`+body+`,"stream_options":`, `,"after":`+body+`}`
		}
		if head != "" {
			body = head + options + tail
		}
		got, want := inject([]byte(body))
		if !want.injected {
			if string(got) != body {
				t.Fatalf("not injected but %s became %s", body, got)
			}
			return
		}
		if options == "" {
			gone := strings.Replace(strings.Replace(string(got), `"stream_options":`+usageOptions+`,`, "", 1), `"stream_options":`+usageOptions, "", 1)
			if gone != body {
				t.Fatalf("%s became %s", body, got)
			}
			return
		}
		inner, okHead := strings.CutPrefix(string(got), head)
		inner, okTail := strings.CutSuffix(inner, tail)
		if !okHead || !okTail {
			t.Fatalf("bytes outside stream_options changed:\n%s\n%s", body, got)
		}
		var sent, had map[string]json.RawMessage
		if err := json.Unmarshal([]byte(inner), &sent); err != nil {
			t.Fatalf("%s: %v", inner, err)
		}
		if err := json.Unmarshal([]byte(options), &had); err != nil {
			t.Fatalf("%s: %v", options, err)
		}
		for _, name := range []string{"include_usage", "continuous_usage_stats"} {
			if string(sent[name]) != "true" {
				t.Fatalf("%s = %s in %s", name, sent[name], inner)
			}
			delete(sent, name)
			delete(had, name)
		}
		if diff := cmp.Diff(had, sent); diff != "" {
			t.Fatalf("other options changed (-had +sent):\n%s", diff)
		}
	})
}

// FuzzStrip holds that an event without its usage is the same JSON otherwise, and
// still one event.
func FuzzStrip(f *testing.F) {
	f.Add(`{"choices":[{"index":0}],"usage":{"prompt_tokens":1}}`)
	f.Add(`{ "usage" : {} , "choices" : [ ] }`)
	f.Add(`{"usage":null}`)
	f.Add(`  	{"usage":null,"b":1} `)
	f.Add(`{"a":1 ,"us\u0061ge":7,"b":"usage"}`)
	f.Fuzz(func(t *testing.T, data string) {
		r := eventReader{limit: 1 << 16, read: pieces("data: "+data+"\n\n", 1<<20)}
		e, err := r.next()
		if err != nil {
			t.Skip()
		}
		v := view(e.data)
		var had map[string]json.RawMessage
		if json.Unmarshal(e.data, &had) != nil || !v.usage.Exists() {
			t.Skip()
		}
		original := string(e.data)
		got := strip(e, v)
		body, ok := strings.CutPrefix(string(got), "data: ")
		body, end := strings.CutSuffix(body, "\n\n")
		if !ok || !end || strings.ContainsAny(body, "\r\n") {
			t.Fatalf("%q became %q", original, got)
		}
		var left map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &left); err != nil {
			t.Fatalf("%q became %q: %v", original, body, err)
		}
		delete(had, "usage")
		delete(left, "usage") // named twice: one goes
		if diff := cmp.Diff(had, left); diff != "" {
			t.Fatalf("%q became %q (-had +left):\n%s", original, body, diff)
		}
	})
}

func TestTallySumsChoicesAndPrompts(t *testing.T) {
	event := func(choice, prompt, output int) string {
		return fmt.Sprintf(`{"choices":[{"index":%d,"text":"x"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, choice, prompt, output)
	}
	tests := []struct {
		name   string
		n      int
		events []string
		want   Usage
	}{
		{"one choice", 1, []string{event(0, 5, 1), event(0, 5, 3)}, Usage{Prompt: 5, Output: 3, Known: true}},
		{"n 2 shares its prompt", 2, []string{event(0, 5, 2), event(1, 5, 3), event(0, 5, 3)}, Usage{Prompt: 5, Output: 6, Known: true}},
		{"two prompts", 0, []string{event(0, 5, 2), event(1, 7, 3)}, Usage{Prompt: 12, Output: 5, Known: true}},
		{"two prompts, n 2", 2, []string{event(0, 5, 1), event(1, 5, 1), event(3, 7, 1)}, Usage{Prompt: 12, Output: 3, Known: true}},
		{"the final usage rules", 1, []string{event(0, 5, 2), `{"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}`}, Usage{Prompt: 6, Output: 9, Cached: 4, Known: true}},
		{"a count that falls is kept", 1, []string{event(0, 5, 4), event(0, 5, 2)}, Usage{Prompt: 5, Output: 4, Known: true}},
		{"an index out of bounds", 1, []string{event(maxChoices, 5, 4), event(-1, 5, 4)}, Usage{}},
		{"absurd counts", 1, []string{event(0, -5, 1<<40)}, Usage{Output: 1<<31 - 1, Known: true}},
		{"role, empty content, tool call", 1, []string{
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
			`{"choices":[{"index":0,"delta":{"content":""}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}`,
			`{"choices":[{"index":0,"delta":{"role":"assistant","content":"x"}}]}`,
			`{"choices":[]}`, `{}`,
		}, Usage{Output: 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sum := tally{n: tt.n}
			for _, e := range tt.events {
				sum.add(view([]byte(e)))
			}
			if sum.total != tt.want {
				t.Errorf("total = %+v, want %+v", sum.total, tt.want)
			}
		})
	}
}

func BenchmarkInject(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(`word \n`, size/7) + `"}],"stream":true}`)
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				inject(body)
			}
		})
	}
}
