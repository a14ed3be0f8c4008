package scraper

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"pgregory.net/rapid"

	"penstock/scheduler"
)

func readPage(t testing.TB, name string) page {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return page{body: body, openMetrics: name == "made-openmetrics"}
}

func pageNames(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pages in testdata: %v", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".txt")
	}
	return files
}

func TestPages(t *testing.T) {
	for name, want := range map[string]scheduler.Sample{
		"idle-start":           {KVTokens: 2048, Ranks: 1},
		"running-and-waiting":  {KV: 1, Running: 14, Waiting: 2, KVTokens: 2048, Ranks: 1, Tokens: 93232, Steps: 6194},
		"kv-high":              {KV: 0.96875, Running: 8, KVTokens: 2048, Ranks: 1, Preemptions: 17, Tokens: 97325, Steps: 6833},
		"preempting":           {KV: 0.203125, Running: 1, Waiting: 11, KVTokens: 2048, Ranks: 1, Preemptions: 1, Tokens: 95712, Steps: 6576},
		"after-preemptions":    {KVTokens: 2048, Ranks: 1, Preemptions: 24, Tokens: 99609, Steps: 7405},
		"after-aborts":         {KVTokens: 2048, Ranks: 1, Tokens: 91417, Steps: 6191},
		"2-api-servers":        {KV: 0.5625, Running: 4, Waiting: 8, KVTokens: 2048, Ranks: 1, Tokens: 1061, Steps: 66},
		"dp2":                  {KV: 0.5625, Running: 8, Waiting: 6, KVTokens: 4096, Ranks: 2, Tokens: 2110, Steps: 129},
		"filtered":             {KVTokens: 2048, Ranks: 1},
		"v0.14.1":              {KVTokens: 2048, Ranks: 1},
		"v0.14.1-hidden-shown": {KVTokens: 2048, Ranks: 1},
		"made-gpu-name":        {KV: 0.25, Running: 3, Waiting: 1, Ranks: 1, Preemptions: 2},
		"made-both-names":      {KV: 0.25, Running: 3, Waiting: 1, KVTokens: 1600, Ranks: 1},
		"made-pid":             {KV: 0.5, Running: 7, Waiting: 2, KVTokens: 1584, Ranks: 1},
		"made-openmetrics":     {KV: 0.125, Running: 4, Ranks: 1, Tokens: 1234},
		"made-odd-labels":      {KV: 0.5, Running: 7, Waiting: 3, KVTokens: 160, Ranks: 2},
		"made-asleep":          {Ranks: 2, Asleep: true},
	} {
		t.Run(name, func(t *testing.T) {
			var r reading
			var h history
			v, err := r.page(readPage(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, h.sample(&v, time.Time{}, time.Time{})); diff != "" {
				t.Errorf("sample (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPagesReadAsExpfmtReadsThem(t *testing.T) {
	var r reading
	for _, name := range pageNames(t) {
		p := readPage(t, name)
		got, err := r.page(p)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := readSlowly(p.body)
		if p.openMetrics {
			if err == nil {
				t.Errorf("%s: expfmt reads exemplars now; compare this page too", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: expfmt: %v", name, err)
		} else if diff := got.differs(&want); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

const goodPage = `vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 1
`

func TestBadPages(t *testing.T) {
	with := func(old, replacement string) string { return strings.Replace(goodPage, old, replacement, 1) }
	for _, tc := range []struct {
		name, page string
		want       Problem
	}{
		{"nothing", "", Empty},
		{"blank", " \n\r\n\t\n", Empty},
		{"only a comment", "# EOF\n", Missing},
		{"html", "<!DOCTYPE html>\n<html>\n", Garbage},
		{"json", "{\"detail\":\"Not Found\"}\n", Missing},
		{"binary", "\x1f\x8b\x00\x01\n" + goodPage, Garbage},
		{"garbage behind a good page", goodPage + "\x00\xff\n", Garbage},
		{"kv missing", with("vllm:kv_cache_usage_perc", "vllm:kv_usage"), Missing},
		{"running missing", with("vllm:num_requests_running", "vllm:requests_running"), Missing},
		{"waiting missing", with("vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"), Missing},
		{"waiting for one engine only", goodPage + "vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\nvllm:num_requests_running{engine=\"1\"} 1\n", Missing},
		{"kv NaN", with("0.5", "NaN"), NotFinite},
		{"kv +Inf", with("0.5", "+Inf"), NotFinite},
		{"kv above one", with("0.5", "1.0001"), OutOfRange},
		{"kv negative", with("0.5", "-0.1"), OutOfRange},
		{"NaN on one of two series", goodPage + "vllm:kv_cache_usage_perc{engine=\"0\",pid=\"7\"} NaN\n", NotFinite},
		{"running negative", with(" 3", " -3"), OutOfRange},
		{"waiting absurd", with(" 1\n", " 1e300\n"), OutOfRange},
		{"counter negative", goodPage + "vllm:prompt_tokens_total -1\n", OutOfRange},
		{"counter NaN", goodPage + "vllm:generation_tokens_total nan\n", NotFinite},
		{"overflow", with("0.5", "1e999"), Garbage},
		{"hex", with("0.5", "0x1p-1"), Garbage},
		{"underscore", with(" 3", " 1_0"), Garbage},
		{"no value", with(" 3", ""), Garbage},
		{"word", with("0.5", "half"), Garbage},
		{"text behind the value", with("0.5", "0.5 x"), Garbage},
		{"text behind the timestamp", with("0.5", "0.5 1 2"), Garbage},
		{"label not closed", with(`{engine="0"}`, `{engine="0`), Garbage},
		{"braces not closed", with(`{engine="0"}`, `{engine="0"`), Garbage},
		{"label not quoted", with(`{engine="0"}`, `{engine=0}`), Garbage},
		{"label without value", with(`{engine="0"}`, `{engine}`), Garbage},
		{"labels without comma", with(`{engine="0"}`, `{engine="0" a="b"}`), Garbage},
		{"bad escape", with(`"0"`, `"\x"`), Garbage},
		{"cut in a number", goodPage[:len(goodPage)-1], Truncated},
		{"cut in a name", goodPage + "vllm:num_requ", Truncated},
		{"too many engines", manyEngines(maxEngines + 1), TooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r reading
			v, err := r.page(page{body: []byte(tc.page)})
			if err == nil {
				t.Fatalf("read as %+v, want %v", v.of, tc.want)
			}
			if got := asError(err).Problem; got != tc.want {
				t.Errorf("problem %v (%v), want %v", got, err, tc.want)
			}
		})
	}
}

func TestGoodPages(t *testing.T) {
	for _, tc := range []struct {
		name string
		page page
	}{
		{"plain", page{body: []byte(goodPage)}},
		{"CRLF", page{body: []byte(strings.ReplaceAll(goodPage, "\n", "\r\n"))}},
		{"EOF line without newline", page{body: []byte(goodPage + "# EOF"), openMetrics: true}},
		{"odd other lines", page{body: []byte("{\"http.requests\",a=\"b\"} 1\nother NaN\nx{ 0.5\n" + goodPage)}},
	} {
		var r reading
		v, err := r.page(tc.page)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if v.of[kvUsage] != 0.5 || v.of[running] != 3 || v.of[waiting] != 1 {
			t.Errorf("%s: %v, want kv 0.5, running 3, waiting 1", tc.name, v.of)
		}
	}
	var r reading
	if _, err := r.page(page{body: []byte(goodPage), openMetrics: true}); err == nil || asError(err).Problem != Truncated {
		t.Errorf("OpenMetrics without # EOF: %v, want truncated", err)
	}
	if v, err := r.page(page{body: []byte(manyEngines(maxEngines))}); err != nil || v.ranks != maxEngines {
		t.Errorf("%d engines: ranks %d, %v", maxEngines, v.ranks, err)
	}
}

// TestEveryCut: no prefix of a page that ends inside a line gives a sample, and
// none of a page of two engines gives half of the load.
func TestEveryCut(t *testing.T) {
	body := readPage(t, "dp2").body
	var r reading
	full, err := r.page(page{body: body})
	if err != nil {
		t.Fatal(err)
	}
	for n := range body {
		v, err := r.page(page{body: body[:n]})
		if err == nil && (body[n-1] != '\n' || v.of[running] != full.of[running] || v.of[waiting] != full.of[waiting]) {
			t.Fatalf("the first %d bytes read as running %v, waiting %v", n, v.of[running], v.of[waiting])
		}
	}
}

func manyEngines(n int) string {
	var b strings.Builder
	for e := range n {
		b.WriteString(strings.ReplaceAll(goodPage, `"0"`, fmt.Sprintf(`"%d"`, e)))
	}
	return b.String()
}

func TestSlotsCountTheNames(t *testing.T) {
	n := 0
	for f := range table {
		n += len(table[f].names)
		for _, name := range table[f].names {
			if !strings.HasPrefix(name, prefix) {
				t.Errorf("%s does not start with %s", name, prefix)
			}
		}
	}
	if n != slots {
		t.Errorf("slots = %d, the table has %d names", slots, n)
	}
	if byName["vllm:cache_config_info"].slot != slots-2 {
		t.Error("cache_config_info's two slots are not the last two")
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	for _, name := range []string{"running-and-waiting", "dp2", "filtered", "made-odd-labels"} {
		p := readPage(t, name)
		var r reading
		var h history
		if n := testing.AllocsPerRun(100, func() {
			v, err := r.page(p)
			if err != nil {
				t.Fatal(err)
			}
			h.sample(&v, time.Time{}, time.Time{})
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// TestMadePages: on pages made of the names we know and some we do not, with odd
// labels, blanks and values, both parsers read the same or both refuse.
func TestMadePages(t *testing.T) {
	names := append(slices.Sorted(maps.Keys(byName)), "vllm:num_requests_running_max", "vllm:k", "vllm:", "up")
	blank := rapid.SampledFrom([]string{"", "", "", " ", "\t "})
	label := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"engine", "pid", "sleep_state", "block_size", "num_gpu_blocks", "kv_cache_size_tokens", `"model.name"`}).Draw(t, "label")
		value := rapid.SampledFrom([]string{"0", "1", "awake", "16", "1600", "None", `a\"b`, `\\`, `\n`, "{x},", "NaN", "", "-5", "é # {"}).Draw(t, "value")
		return blank.Draw(t, "") + name + blank.Draw(t, "") + "=" + blank.Draw(t, "") + `"` + value + `"` + blank.Draw(t, "")
	})
	line := rapid.Custom(func(t *rapid.T) string {
		value := rapid.SampledFrom([]string{"0", "0.5", "1", "1.0", "7e0", "+3", ".25", "12", "-1", "NaN", "-Inf", "1e300"}).Draw(t, "v")
		if rapid.IntRange(0, 3).Draw(t, "plain") > 0 {
			value = "1"
		}
		key := func(l string) string { return strings.TrimSpace(l[:strings.IndexByte(l, '=')]) }
		labels := rapid.SliceOfNDistinct(label, 0, 4, key).Draw(t, "labels")
		return blank.Draw(t, "") + rapid.SampledFrom(names).Draw(t, "name") + blank.Draw(t, "") + "{" +
			strings.Join(labels, ",") + rapid.SampledFrom([]string{"}", " }", ",}"}[:2+min(len(labels), 1)]).Draw(t, "end") +
			blank.Draw(t, "") + value + rapid.SampledFrom([]string{"", "", " 1796031872270"}).Draw(t, "stamp") + "\n"
	})
	var r reading
	read := 0
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(goodPage + strings.Join(rapid.SliceOfN(line, 0, 6).Draw(t, "lines"), ""))
		got, err := r.page(page{body: body})
		want, slowErr := readSlowly(body)
		if (err == nil) != (slowErr == nil) {
			t.Fatalf("scanner: %v, parser: %v, page:\n%s", err, slowErr, body)
		}
		if err == nil {
			read++
			if diff := got.differs(&want); diff != "" {
				t.Fatalf("%s, page:\n%s", diff, body)
			}
		}
	})
	t.Logf("%d pages gave values", read)
}

// FuzzScan: on a page that the Prometheus parser takes, the scanner reads the same
// or refuses for the same reason to refuse; on others it only must not crash.
func FuzzScan(f *testing.F) {
	f.Add([]byte(goodPage))
	f.Add([]byte(manyEngines(3)))
	for _, name := range pageNames(f) {
		var wanted []byte // the whole page is too long to mutate well
		for line := range bytes.Lines(readPage(f, name).body) {
			if n := bytes.IndexAny(line, "{ "); len(line) < 120 && (n > 0 && byName[string(line[:n])].name != "" || len(wanted) < 500) {
				wanted = append(wanted, line...)
			}
		}
		f.Add(wanted)
	}
	var r reading
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := r.page(page{body: body})
		for line := range bytes.Lines(body) {
			// A name in quotes is not ours, a carriage return is not theirs.
			if line = bytes.TrimLeft(line, " \t"); line[0] == '{' || line[0] == '"' || bytes.IndexByte(line, '\r') >= 0 ||
				bytes.Contains(line[:max(bytes.IndexAny(line, "{ \t"), 0)], []byte(`"`)) {
				return
			}
		}
		want, slowErr := readSlowly(body)
		e := asError(slowErr)
		switch {
		case slowErr == nil && err == nil:
			if diff := got.differs(&want); diff != "" {
				t.Errorf("%s", diff)
			}
		case slowErr == nil && asError(err).Problem != Truncated:
			t.Errorf("the parser reads it, the scanner says %v", err)
		case slowErr != nil && e.Problem != Unreachable && err == nil: // a page that both understand
			t.Errorf("the scanner reads it as %v, want %v", got.of, slowErr)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for _, name := range []string{"running-and-waiting", "dp2", "filtered"} {
		b.Run(name, func(b *testing.B) {
			p := readPage(b, name)
			var r reading
			b.SetBytes(int64(len(p.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.page(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkExpfmt(b *testing.B) {
	for _, name := range []string{"running-and-waiting", "dp2", "filtered"} {
		b.Run(name, func(b *testing.B) {
			body := readPage(b, name).body
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				parser := expfmt.NewTextParser(model.UTF8Validation)
				if _, err := parser.TextToMetricFamilies(bytes.NewReader(body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
