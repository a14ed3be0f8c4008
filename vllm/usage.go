package vllm

import (
	"bytes"
	"slices"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// usageOptions is what injection adds to a body without stream_options.
const usageOptions = `{"include_usage":true,"continuous_usage_stats":true}`

// asked is what usage the client itself wants, and whether we ask for more.
type asked struct {
	injected   bool
	final      bool // the client wants the final usage event
	continuous bool // and usage in every event
}

// inject adds the two usage options to a streamed body and changes no other byte.
// A body whose stream_options cannot be read for sure (not an object, named twice,
// options that are not true, false or null) is left alone: the engine judges it.
func inject(body []byte) ([]byte, asked) {
	var options gjson.Result
	found := 0
	document := gjson.Parse(text(body)) // refers to body, which nobody changes
	if !document.IsObject() {
		return body, asked{}
	}
	document.ForEach(func(key, value gjson.Result) bool {
		if key.Str == "stream_options" {
			options = value
			found++
		}
		return true
	})
	open := bytes.IndexByte(body, '{') + 1
	switch {
	case found == 0:
		member := `"stream_options":` + usageOptions
		if rest := bytes.TrimLeft(body[open:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' {
			member += ","
		}
		return splice(body, open, open, member), asked{injected: true}
	case found > 1:
		return body, asked{}
	case options.Type == gjson.Null && options.Raw == "null":
		return splice(body, options.Index, options.Index+len(options.Raw), usageOptions), asked{injected: true}
	case !options.IsObject() || !gjson.Valid(options.Raw):
		return body, asked{}
	}

	var final, continuous gjson.Result
	twice := false
	options.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "include_usage":
			twice = twice || final.Exists()
			final = value
		case "continuous_usage_stats":
			twice = twice || continuous.Exists()
			continuous = value
		}
		return true
	})
	if twice || !isFlag(final) || !isFlag(continuous) {
		return body, asked{}
	}
	want := asked{final: final.Bool(), continuous: final.Bool() && continuous.Bool()}
	if want.continuous {
		return body, want
	}
	wider, err := sjson.SetRaw(options.Raw, "include_usage", "true")
	if err == nil {
		wider, err = sjson.SetRaw(wider, "continuous_usage_stats", "true")
	}
	if err != nil {
		return body, asked{}
	}
	want.injected = true
	return splice(body, options.Index, options.Index+len(options.Raw), wider), want
}

// isFlag holds for true, false, null and an option that is not there.
func isFlag(r gjson.Result) bool { return r.IsBool() || r.Type == gjson.Null }

// splice is body with body[from:to] replaced, in new memory.
func splice(body []byte, from, to int, with string) []byte {
	out := make([]byte, 0, len(body)+len(with))
	out = append(append(out, body[:from]...), with...)
	return append(out, body[to:]...)
}

// chunkView is what one event's data holds at its top level.
type chunkView struct {
	failure gjson.Result // "error"
	usage   gjson.Result
	usageAt int // of the member's key, in data
	choices gjson.Result
	valid   bool
}

// view walks the top level once, without decoding what is inside.
func view(data []byte) (v chunkView) {
	s := text(data)
	document := gjson.Parse(s)
	if !document.IsObject() || !gjson.Valid(s) {
		return v
	}
	v.valid = true
	document.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "error":
			v.failure = value
		case "usage":
			v.usage, v.usageAt = value, key.Index
		case "choices":
			v.choices = value
		}
		return true
	})
	return v
}

func (v chunkView) noChoices() bool { return v.choices.Exists() && !v.choices.Get("0").Exists() }

// maxChoices bounds the per-choice counts: vLLM's own bound on sequences of one
// request (VLLM_MAX_N_SEQUENCES).
const maxChoices = 16384

// tally keeps the running totals of one stream. The engine reports continuous
// usage per choice and the prompt per prompt: choice i belongs to prompt i/n.
type tally struct {
	n       int // choices per prompt, the body's "n"
	outputs []int
	prompts []int
	total   Usage
}

// add counts one event. Until the engine reports usage, an event with content is
// one token: the first event of a chat, which only names the role, is none.
func (t *tally) add(v chunkView) {
	switch {
	case v.usage.IsObject() && v.noChoices():
		t.total = parseUsage(v.usage.Raw)
	case v.usage.IsObject():
		t.addChoice(int(v.choices.Get("0.index").Int()), parseUsage(v.usage.Raw))
	case !t.total.Known && v.choices.Exists() && !v.noChoices():
		delta := v.choices.Get("0.delta")
		if !delta.Get("role").Exists() || delta.Get("content").Str != "" {
			t.total.Output++
		}
	}
}

func (t *tally) addChoice(choice int, u Usage) {
	if choice < 0 || choice >= maxChoices {
		return
	}
	if !t.total.Known {
		t.total = Usage{Known: true}
	}
	t.total.Output += raise(&t.outputs, choice, u.Output)
	t.total.Prompt += raise(&t.prompts, choice/max(t.n, 1), u.Prompt)
	t.total.Cached = max(t.total.Cached, u.Cached)
}

// raise sets counts[i] to value and returns by how much it grew.
func raise(counts *[]int, i, value int) int {
	if grow := i + 1 - len(*counts); grow > 0 {
		*counts = append(*counts, slices.Repeat([]int{0}, grow)...)
	}
	grown := max(value-(*counts)[i], 0)
	(*counts)[i] += grown
	return grown
}

func parseUsage(raw string) Usage {
	return Usage{
		Prompt: tokens(raw, "prompt_tokens"),
		Output: tokens(raw, "completion_tokens"),
		Cached: tokens(raw, "prompt_tokens_details.cached_tokens"),
		Known:  true,
	}
}

// tokens is a count in [0, 1<<31).
func tokens(raw, path string) int {
	return int(min(max(gjson.Get(raw, path).Int(), 0), 1<<31-1))
}

// strip removes the usage member and one comma from an event, in place.
func strip(e event, v chunkView) []byte {
	const blank = " \t"
	data := len(e.block) - len("\n\n") - len(e.data) // offset of data in block
	from, to := data+v.usageAt, data+v.usage.Index+len(v.usage.Raw)
	if before := bytes.TrimRight(e.block[:from], blank); before[len(before)-1] == ',' {
		from = len(before) - 1
	} else if after := bytes.TrimLeft(e.block[to:], blank); after[0] == ',' {
		to = len(e.block) - len(bytes.TrimLeft(after[1:], blank))
	}
	return append(e.block[:from], e.block[to:]...)
}
