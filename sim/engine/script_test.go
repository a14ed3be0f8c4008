package engine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the scripts' outputs into testdata")

// TestScripts runs testdata/*.txt, one file per rule. A paragraph is commands, a
// line "----" and what they print:
//
//	config blocks=9 block=4 …   a new engine; the rest of Config has the values of scriptConfig
//	prefix ID...                the parts of the prompts submitted from here on
//	submit ID PROMPT OUTPUT     (several triples: all or none)
//	hits | abort ID | begin | end | step [COUNT] | stats
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("output differs (-want +got):\n%s", diff)
			}
		})
	}
}

func scriptConfig() Config {
	return Config{
		Blocks: 9, BlockSize: 4, MaxModelLen: 32, MaxSeqs: 8, MaxBatchedTokens: 16, FullPromptGate: true,
		Base: 10 * time.Millisecond,
	}
}

func runScript(t *testing.T, text string) string {
	var out strings.Builder
	var e *Engine
	var prefix []uint64
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			out.WriteString("\n")
		}
		commands, _, _ := strings.Cut(paragraph, "----")
		out.WriteString(strings.TrimRight(commands, "\n") + "\n")
		if strings.HasPrefix(paragraph, "#") {
			continue // a paragraph of words
		}
		out.WriteString("----\n")
		for line := range strings.Lines(commands) {
			e = runCommand(t, e, strings.Fields(line), &prefix, &out)
		}
	}
	return out.String()
}

func runCommand(t *testing.T, e *Engine, f []string, prefix *[]uint64, out *strings.Builder) *Engine {
	switch f[0] {
	case "config":
		e, err := New(parseConfig(t, f[1:]))
		if err != nil {
			fmt.Fprintln(out, err)
		}
		return e
	case "prefix":
		*prefix = nil
		for _, id := range f[1:] {
			*prefix = append(*prefix, uint64(number(t, id)))
		}
	case "hits":
		s := e.Stats()
		fmt.Fprintf(out, "%d of %d prompt tokens found, %d computed\n", s.PrefixHits, s.PrefixQueries, s.TokensComputed)
	case "submit":
		var rs []Request
		for f := f[1:]; len(f) >= 3; f = f[3:] {
			rs = append(rs, Request{ID: uint64(number(t, f[0])), Prompt: number(t, f[1]), Output: number(t, f[2]), Prefix: *prefix})
		}
		if err := e.Submit(rs...); err != nil {
			fmt.Fprintln(out, err)
		}
	case "abort":
		e.Abort(uint64(number(t, f[1])))
	case "begin":
		fmt.Fprintf(out, "begun, takes %v\n", e.Begin())
	case "end":
		fmt.Fprintln(out, describe(e, e.End()))
	case "step":
		n := 1
		if len(f) > 1 {
			n = number(t, f[1])
		}
		for range n {
			r := e.Step()
			fmt.Fprintf(out, "%v %s\n", r.Duration, describe(e, r.Events))
		}
	case "stats":
		s := e.Stats()
		fmt.Fprintf(out, "steps %d, prompt %d, generated %d, finished %d, preemptions %d, rejected %d+%d, aborted %d, wasted %d aborted + %d recomputed\n",
			s.Steps, s.PromptTokens, s.GenerationTokens, s.Finished, s.Preemptions, s.RejectedReqs, s.RejectedTokens, s.Aborted, s.TokensAborted, s.TokensRecomputed)
	default:
		t.Fatalf("unknown command %q", f[0])
	}
	return e
}

func describe(e *Engine, events []Event) string {
	var b strings.Builder
	s := e.Stats()
	fmt.Fprintf(&b, "running %d waiting %d kv %.3f:", s.Running, s.Waiting, s.KV)
	for _, ev := range events {
		kind := map[Kind]string{Token: "", Finished: " finished", Aborted: " aborted"}[ev.Kind]
		fmt.Fprintf(&b, " [%d #%d%s]", ev.ID, ev.Output, kind)
	}
	return b.String()
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func parseConfig(t *testing.T, fields []string) Config {
	c := scriptConfig()
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "blocks":
			c.Blocks = number(t, value)
		case "block":
			c.BlockSize = number(t, value)
		case "len":
			c.MaxModelLen = number(t, value)
		case "part":
			c.PrefixTokens = number(t, value)
		case "seqs":
			c.MaxSeqs = number(t, value)
		case "batch":
			c.MaxBatchedTokens = number(t, value)
		case "gate":
			c.FullPromptGate = value == "on"
		case "watermark":
			c.Watermark, _ = strconv.ParseFloat(value, 64)
		case "reqs":
			c.MaxQueuedReqs = number(t, value)
		case "tokens":
			c.MaxQueuedTokens = number(t, value)
		case "context":
			c.PerPrefillContext = time.Duration(number(t, value)) * time.Millisecond
		case "cost":
			c.Base, c.PerPrefillToken, c.PerSeq, c.PerKVToken = 10*time.Millisecond, time.Millisecond, 100*time.Microsecond, time.Microsecond
		default:
			t.Fatalf("unknown config %q", name)
		}
	}
	return c
}
