package scheduler

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/reason"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected results in testdata")

// watermarks is the law that most of what decides is tested under: its numbers do not
// depend on what was learned.
func watermarks() Config {
	cfg := DefaultConfig()
	cfg.Law = Watermark
	return cfg
}

// TestScripts runs testdata/*.txt. A line is a command with key=value arguments,
// then " -> " and what it answers; "#" begins a comment. A script that changes is
// rewritten with -rewrite and read as a diff.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(text), "\n")
			for i := range gotLines {
				if gotLines[i] != wantLines[i] {
					t.Errorf("%s:%d\n got %s\nwant %s", file, i+1, gotLines[i], wantLines[i])
				}
			}
		})
	}
}

// script is one run: a state, its clock, and the requests and slots by name.
type script struct {
	s       *State
	now     time.Time
	last    Sample
	started map[string]Slot
	known   map[string]Request
	args    map[string]string
	bad     error
}

func runScript(t *testing.T, text string) string {
	t.Helper()
	start := time.Unix(1000, 0).Add(-50 * time.Millisecond)
	s, err := New(watermarks(), start)
	if err != nil {
		t.Fatal(err)
	}
	sc := &script{s: s, now: start, started: map[string]Slot{}, known: map[string]Request{}}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		command, _, _ := strings.Cut(line, " -> ")
		answer := sc.run(strings.Fields(command))
		if sc.bad != nil {
			t.Fatalf("line %d: %q: %v", i+1, line, sc.bad)
		}
		if lines[i] = command; answer != "" {
			lines[i] = command + " -> " + answer
		}
	}
	return strings.Join(lines, "\n")
}

func (sc *script) run(words []string) string {
	sc.args = map[string]string{}
	var names []string
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			sc.args[k] = v
		} else {
			names = append(names, w)
		}
	}
	defer sc.unused()
	switch words[0] {
	case "tiers": // a new state with tiers, first goes first: name:floor:ceiling:age:slo
		sc.tiers(names)
	case "backlog":
		sc.s.SetBacklog(sc.number("tier", 0), sc.number("n", 0))
	case "relief": // tiers that have it
		return fmt.Sprintf("%b", sc.s.View(sc.now).Relief)
	case "observe": // the next page, 50 ms later
		sc.now = sc.now.Add(50 * time.Millisecond)
		sc.observe()
	case "poll": // the last sample again, every 50 ms for the given time; moving: with tokens
		moving := sc.number("moving", 0)
		for end := sc.now.Add(duration(sc, names[0])); sc.now.Before(end); {
			sc.now = sc.now.Add(50 * time.Millisecond)
			sc.last.Tokens += float64(moving)
			sc.last.At, sc.last.Asked, sc.last.Restarted = sc.now, sc.now, false
			sc.s.Observe(sc.now, sc.last)
		}
	case "advance":
		sc.now = sc.now.Add(duration(sc, names[0]))
	case "decide":
		r := sc.request(names[0])
		return show(sc.s.Decide(sc.now, &r))
	case "pick":
		var heads []Request
		for _, n := range names {
			heads = append(heads, sc.known[n])
		}
		i, v := sc.s.Pick(sc.now, heads)
		if i < 0 {
			return "none " + show(v)
		}
		return names[i] + " " + show(v)
	case "know": // a request for a later pick
		sc.request(names[0])
	case "start": // decide, then reserve if it may
		return sc.start(names)
	case "reserve":
		r := sc.request(names[0])
		sc.started[names[0]] = sc.s.Reserve(sc.now, &r)
	case "progress":
		sc.s.Progress(sc.now, sc.started[names[0]], sc.number("prompt", 0), sc.number("out", 0))
	case "release":
		for _, n := range names {
			sc.s.Release(sc.now, sc.started[n])
		}
	case "warm": // three first tokens that teach the given speed
		sc.warm(sc.number("rate", 10000))
	case "drain":
		sc.s.SetDraining(names[0] == "on")
	case "maxlen":
		sc.s.SetMaxModelLen(sc.number("tokens", 0))
	case "peer":
		sc.s.SetPeers([]Peer{{CanStart: true, Freeness: sc.number("free", 0), At: sc.now.Add(-sc.span("age", 0))}})
	case "view":
		v := sc.s.View(sc.now)
		return fmt.Sprintf("%s gate=%s credit=%d free=%d pending=%d/%d inflight=%d/%d", v.Condition, v.Gate, v.Credit, v.Freeness, v.Pending, v.PendingSeq, v.Requests, v.Tokens)
	default:
		sc.bad = fmt.Errorf("no such command")
	}
	return ""
}

// start counts verdicts over one or, with many=, that many requests.
func (sc *script) start(names []string) string {
	many := sc.number("many", 1)
	counts, order := map[string]int{}, []string{}
	for i := range many {
		name := names[0]
		if many > 1 {
			name += strconv.Itoa(i)
		}
		r := sc.request(name)
		v := sc.s.Decide(sc.now, &r)
		if v.Action == Start {
			sc.started[name] = sc.s.Reserve(sc.now, &r)
		}
		if many == 1 {
			return show(v)
		}
		key := v.Action.String() + " " + v.Reason.String()
		if counts[key]++; counts[key] == 1 {
			order = append(order, key)
		}
	}
	for i, key := range order {
		order[i] = fmt.Sprintf("%s x%d", key, counts[key])
	}
	return strings.Join(order, ", ")
}

func (sc *script) tiers(names []string) {
	cfg := watermarks()
	for _, n := range names {
		t := Tier{Ceiling: 1}
		part := strings.Split(n, ":")
		t.Name, t.Age = part[0], duration(sc, part[3])
		if len(part) > 4 {
			t.SLOTTFT = duration(sc, part[4])
		}
		if _, err := fmt.Sscan(part[1]+" "+part[2], &t.Floor, &t.Ceiling); err != nil {
			sc.bad = err
		}
		cfg.Tiers = append(cfg.Tiers, t)
	}
	s, err := New(cfg, sc.s.start)
	if err != nil {
		sc.bad = err
		return
	}
	sc.s = s
}

func (sc *script) warm(rate int) {
	for i := range 4 {
		r := Request{PromptTokens: rate / 10, Sequences: 1, Stream: true, Hash: uint64(i)}
		slot := sc.s.Reserve(sc.now, &r)
		sc.now = sc.now.Add(100 * time.Millisecond)
		sc.s.Progress(sc.now, slot, 0, 1)
		sc.s.Release(sc.now, slot)
	}
	sc.now = sc.now.Add(100 * time.Millisecond)
	sc.last.At, sc.last.Asked = sc.now, sc.now
	sc.s.Observe(sc.now, sc.last)
}

func (sc *script) observe() {
	sc.last = Sample{
		At: sc.now, Asked: sc.now.Add(-sc.span("ago", 0)), KV: sc.share("kv"), Running: sc.number("running", 0), Waiting: sc.number("waiting", 0),
		KVTokens: sc.number("k", 100000), Ranks: sc.number("ranks", 1), Tokens: float64(sc.number("tokens", 0)),
		StepTime: sc.span("step", 0), Asleep: sc.args["asleep"] != "", Restarted: sc.args["restarted"] != "",
	}
	delete(sc.args, "asleep")
	delete(sc.args, "restarted")
	sc.s.Observe(sc.now, sc.last)
}

// request reads a request's arguments. Its hash comes from its name.
func (sc *script) request(name string) Request {
	r := Request{
		Hash: 1, PromptTokens: sc.number("prompt", 100), SafePrompt: sc.number("safe", 0), ExpectedOut: sc.number("out", 200), Sequences: sc.number("n", 1),
		Opened: sc.now.Add(-sc.span("waited", 0)), Deadline: sc.now.Add(sc.span("deadline", 30*time.Second)),
		Tier: sc.number("tier", 0), Tenant: uint64(sc.number("tenant", 0)),
		SLOTTFT: sc.span("slo", 2*time.Second), SLOTTFTNamed: sc.args["named"] != "", Stream: sc.args["plain"] == "", Aborted: sc.args["aborted"] != "",
	}
	for _, flag := range []string{"named", "plain", "aborted"} {
		delete(sc.args, flag)
	}
	for _, c := range name {
		r.Hash = mix(r.Hash, uint64(c))
	}
	if old, ok := sc.known[name]; ok && len(sc.args) == 0 {
		return old
	}
	sc.known[name] = r
	return r
}

// unused fails a script that has a key nobody reads.
func (sc *script) unused() {
	for k := range sc.args {
		if !strings.Contains(" many kv ago running waiting k ranks tokens step prompt safe out n waited deadline slo rate free age tier tenant moving ", " "+k+" ") {
			sc.bad = fmt.Errorf("unknown argument %s", k)
		}
	}
}

func (sc *script) number(key string, fallback int) int {
	v, ok := sc.args[key]
	if !ok {
		return fallback
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		sc.bad = err
	}
	return n
}

func (sc *script) share(key string) float64 {
	f, err := strconv.ParseFloat(sc.args[key], 64)
	if err != nil {
		sc.bad = err
	}
	return f
}

func (sc *script) span(key string, fallback time.Duration) time.Duration {
	if v, ok := sc.args[key]; ok {
		return duration(sc, v)
	}
	return fallback
}

func duration(sc *script, v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		sc.bad = err
	}
	return d
}

func show(v Verdict) string {
	out := v.Action.String() + " " + v.Reason.String()
	if v.After > 0 {
		out += " " + v.After.Round(time.Millisecond).String()
	}
	return out
}

func TestActionNames(t *testing.T) {
	for a, want := range map[Action]string{Start: "start", Hold: "hold", Suspend: "suspend", Drop: "drop", 0: "none"} {
		if got := a.String(); got != want {
			t.Errorf("Action(%d) = %q, want %q", a, got, want)
		}
	}
	if v := (Verdict{}); v.Reason != reason.None {
		t.Errorf("zero Verdict has reason %s", v.Reason)
	}
}
