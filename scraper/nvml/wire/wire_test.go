package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sample() Line {
	g := NewGPU(3, "GPU-1")
	g.At, g.Util, g.Used, g.Total = time.Second, 40, 10<<30, 80<<30
	g.MIG, g.Parts = true, []Part{{ID: "MIG-1", Instance: 7, Used: 1, Total: 2}}
	return Line{V: Version, Seq: 9, Up: 2 * time.Second, Every: 50 * time.Millisecond, GPUs: []GPU{g}, XIDs: []XID{{I: 3, Code: 79, Instance: Unknown}}}
}

func TestParseReadsWhatIsWritten(t *testing.T) {
	want := sample()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, break_ := range map[string]func(*Line){
		"version":      func(l *Line) { l.V = 2 },
		"end":          func(l *Line) { l.End = "whim" },
		"order":        func(l *Line) { l.GPUs = append(l.GPUs, l.GPUs[0]) },
		"index":        func(l *Line) { l.GPUs[0].I = MaxGPUs },
		"negative":     func(l *Line) { l.GPUs[0].I = -1 },
		"future":       func(l *Line) { l.GPUs[0].At = time.Hour },
		"utilization":  func(l *Line) { l.GPUs[0].Util = 101 },
		"memory":       func(l *Line) { l.GPUs[0].Used = 81 << 30 },
		"part":         func(l *Line) { l.GPUs[0].Parts[0].Used = 3 },
		"temperature":  func(l *Line) { l.GPUs[0].Celsius = 1e6 },
		"XID's GPU":    func(l *Line) { l.XIDs[0].I = 99 },
		"many XIDs":    func(l *Line) { l.XIDs = make([]XID, MaxXIDs+1) },
		"long name":    func(l *Line) { l.Driver = strings.Repeat("x", 1000) },
		"long to read": func(l *Line) { l.Every = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			l := sample()
			break_(&l)
			text, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := Parse(text); err == nil {
				t.Errorf("Parse(%s) = %+v, want an error", text, got)
			}
		})
	}
	for _, text := range []string{"", "null", "{}", "[]", "hello", `{"v":1`, "\xff"} {
		if got, err := Parse([]byte(text)); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, got)
		}
	}
}

// TestLargestLineFits holds MaxLine against the other bounds.
func TestLargestLineFits(t *testing.T) {
	long := strings.Repeat("x", maxText)
	l := Line{V: Version, Seq: 1 << 60, Up: 1 << 60, Driver: long, Call: long}
	for i := range MaxGPUs {
		g := NewGPU(i, long)
		g.At, g.Slow, g.Used, g.Total, g.Clocks, g.MIG = 1<<60, 1<<60, 1<<49, 1<<50, 1<<63, true
		for range MaxMIG - 1 {
			g.Parts = append(g.Parts, Part{ID: strings.Repeat("x", 48), Instance: 1000, Used: 1 << 49, Total: 1 << 50})
		}
		l.GPUs = append(l.GPUs, g)
	}
	for range MaxXIDs {
		l.XIDs = append(l.XIDs, XID{I: 31, Code: 1 << 63})
	}
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse(text); err != nil {
		t.Errorf("%d bytes: %v", len(text), err)
	}
}

func BenchmarkParse(b *testing.B) {
	l := sample()
	for i := range 7 {
		g := l.GPUs[0]
		g.I += i + 1
		l.GPUs = append(l.GPUs, g)
	}
	text, err := json.Marshal(l)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	text, err := json.Marshal(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"v":1,"end":"init","code":9}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		l, err := Parse(line)
		if err != nil {
			return
		}
		again, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse(again)
		if err != nil {
			t.Fatalf("Parse(%q) is good, written again %q is not: %v", line, again, err)
		}
		if diff := cmp.Diff(l, back, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}
