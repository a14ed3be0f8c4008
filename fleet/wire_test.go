package fleet

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// full is a row with something in every field, exact in the units of the wire.
func full() Row {
	return Row{
		Engine: ID("gpu-1:8000"), Node: "gpu-1:8000", Incarnation: 1772366400123, Seq: 7,
		Models: Models("llama-3-8b", "llama-3-8b-lora"), Pool: "h200", State: reason.Stale,
		Running: 37, Waiting: 4, KV: 0.815, Step: 23456 * time.Microsecond, Freeness: 12345, DrainRate: 2345.67,
		FirstToken: 180 * time.Millisecond, Start: 2500 * time.Millisecond, At: noon.Add(-150 * time.Millisecond),
	}
}

// largest is as long as a row can get, and all its numbers are too large.
func largest() Row {
	r := Row{
		Engine: math.MaxUint64, Node: strings.Repeat("n", 255), Incarnation: math.MaxUint64, Seq: math.MaxUint64,
		Pool: strings.Repeat("p", 99), State: reason.GPUFault, Running: math.MaxInt, Waiting: 1 << 20, KV: 7,
		Step: math.MaxInt64, Freeness: math.MaxInt, DrainRate: math.Inf(1), FirstToken: math.MaxInt64, Start: math.MaxInt64,
	}
	for i := range r.Models {
		r.Models[i] = uint64(i + 1)
	}
	return r
}

// TestGolden holds the bytes of all versions: another process reads what this one wrote.
func TestGolden(t *testing.T) {
	table := NewTable(ID("gpu-1:8000"), 5)
	row := full()
	table.Own(noon, row)
	row.Engine, row.Node, row.State = ID("gpu-2:8000"), "gpu-2:8000", reason.OK
	table.put(noon, &row)
	big, empty, relieved := largest(), Row{Engine: 1, At: noon}, full()
	relieved.Relief = 1<<15 | 1<<2
	ruled := relieved
	ruled.Policy = Policy("a1b2c3d4e5f60718")
	gateway := Row{Engine: ID("gateway@gw1/0.0.0.0:4786"), Node: "gateway@gw1/0.0.0.0:4786", Gateway: true, State: reason.OK, At: noon}
	for name, got := range map[string][]byte{
		"row-v1": AppendRow(nil, ptr(full()), noon), "row-largest-v1": AppendRow(nil, &big, noon), "row-empty-v1": AppendRow(nil, &empty, noon),
		"row-v2": AppendRow(nil, &relieved, noon), "row-v3": AppendRow(nil, &ruled, noon), "row-gateway-v3": AppendRow(nil, &gateway, noon), "table-v1": table.AppendTable(nil, noon),
	} {
		path := filepath.Join("testdata", name+".hex")
		if *rewrite {
			if err := os.WriteFile(path, []byte(hex.Dump(got)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), hex.Dump(got)); diff != "" {
			t.Errorf("%s differs (-want +got); a changed layout is a new version:\n%s", path, diff)
		}
	}
	big.Relief, big.Policy = math.MaxUint16, math.MaxUint32
	if n := len(AppendRow(nil, &big, noon)); n != MaxSize {
		t.Errorf("the largest row takes %d bytes, want %d", n, MaxSize)
	}
}

func ptr[T any](v T) *T { return &v }

func TestRowRoundTrip(t *testing.T) {
	want := full()
	want.Relief, want.Policy = 6, 0xa1b2c3d4
	// The reader's clock is minutes ahead; the row is 150 ms old all the same.
	ahead := noon.Add(7 * time.Minute)
	got, err := ParseRow(AppendRow(nil, &want, noon), ahead)
	if err != nil {
		t.Fatal(err)
	}
	want.At = ahead.Add(-150 * time.Millisecond)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a row changed on its way (-want +got):\n%s", diff)
	}
	if !got.Serves("llama-3-8b-lora", ahead) || got.Serves("other", ahead) {
		t.Error("the row does not serve what it names, or serves what it does not")
	}
}

func TestRowSaturates(t *testing.T) {
	big := largest()
	got, err := ParseRow(AppendRow(nil, &big, noon), noon)
	if err != nil {
		t.Fatal(err)
	}
	want := Row{
		Engine: math.MaxUint64, Node: strings.Repeat("n", MaxNode), Incarnation: math.MaxUint64, Seq: math.MaxUint64,
		Models: big.Models, Pool: strings.Repeat("p", MaxPool), State: reason.GPUFault, Running: math.MaxUint16, Waiting: math.MaxUint16, KV: 1,
		Step: math.MaxUint32 * time.Microsecond, Freeness: math.MaxUint32, DrainRate: math.MaxUint32 / 100.0,
		FirstToken: math.MaxUint32 * time.Millisecond, Start: math.MaxUint32 * time.Millisecond, At: noon.Add(-math.MaxUint32 * time.Millisecond),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	low, err := ParseRow(AppendRow(nil, &Row{Engine: 1, State: reason.Finished, Running: -1, KV: math.NaN(), DrainRate: math.NaN(), Start: -1, At: noon.Add(time.Hour)}, noon), noon)
	if want := (Row{Engine: 1, State: reason.Blind, At: noon}); err != nil || low != want {
		t.Errorf("a row of nonsense arrives as %+v, %v; want %+v", low, err, want)
	}
}

func TestParseRowRefuses(t *testing.T) {
	change := func(at int, to byte) []byte {
		b := AppendRow(nil, ptr(full()), noon)
		b[at] = to
		return b
	}
	good := AppendRow(nil, ptr(full()), noon)
	for _, tt := range []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, ErrMalformed},
		{"another kind", change(0, KindTable), ErrMalformed},
		{"version 0", change(1, 0), ErrVersion},
		{"the next version", change(1, rowVersion+1), ErrVersion},
		{"the next version, shorter", []byte{KindRow, rowVersion + 1}, ErrVersion},
		{"no engine", append(append(bytes.Clone(good[:2]), make([]byte, 8)...), good[10:]...), ErrMalformed},
		{"state 0", change(30, 0), ErrMalformed},
		{"a state nobody knows", change(30, byte(len(states))), ErrMalformed},
		{"KV above 1", change(31, 0xff), ErrMalformed},
		{"9 models", change(57, 9), ErrMalformed},
		{"node name past the end", change(58+16, 48), ErrMalformed},
		{"node name too long", change(58+16, 49), ErrMalformed},
		{"pool past the end", change(58+16+1+10, 5), ErrMalformed},
		{"version 2 without what it adds", change(1, 2), ErrMalformed},
		{"version 3 without what it adds", change(1, 3), ErrMalformed},
		{"version 3 of nobody", append(change(1, 3), 0, 0, 0, 0, 0, 1, 2), ErrMalformed},
		{"more behind", append(bytes.Clone(good), 0), ErrMalformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if r, err := ParseRow(tt.b, noon); !errors.Is(err, tt.want) || r != (Row{}) {
				t.Errorf("ParseRow = %+v, %v; want %v", r, err, tt.want)
			}
		})
	}
	for n := range good {
		if _, err := ParseRow(good[:n], noon); !errors.Is(err, ErrMalformed) {
			t.Errorf("the first %d bytes of a row: %v, want %v", n, err, ErrMalformed)
		}
	}
}

func FuzzParseRow(f *testing.F) {
	big := largest()
	f.Add(AppendRow(nil, ptr(full()), noon))
	f.Add(AppendRow(nil, &big, noon))
	f.Add(AppendRow(nil, &Row{Engine: 1, At: noon}, noon))
	f.Add(AppendRow(nil, &Row{Engine: 1, At: noon, Relief: 2}, noon))
	f.Add(AppendRow(nil, &Row{Engine: 1, At: noon, Policy: 7, Gateway: true}, noon))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRow(b, noon)
		if err != nil {
			return
		}
		if again := AppendRow(nil, &r, noon); again[1] < b[1] { // the same, written shorter
			b = again
			if r, err = ParseRow(b, noon); err != nil {
				t.Fatal(err)
			}
		}
		if again := AppendRow(nil, &r, noon); !bytes.Equal(again, b) {
			t.Errorf("%x is read and written as %x", b, again)
		}
	})
}

func TestAppendRowAllocates(t *testing.T) {
	row, dst := full(), make([]byte, 0, MaxSize)
	if n := testing.AllocsPerRun(100, func() { AppendRow(dst, &row, noon) }); n != 0 {
		t.Errorf("AppendRow allocates %v times, want 0", n)
	}
}

func BenchmarkAppendRow(b *testing.B) {
	row, dst := full(), make([]byte, 0, MaxSize)
	b.ReportAllocs()
	for b.Loop() {
		AppendRow(dst, &row, noon)
	}
}

func BenchmarkParseRow(b *testing.B) {
	encoded := AppendRow(nil, ptr(full()), noon)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseRow(encoded, noon); err != nil {
			b.Fatal(err)
		}
	}
}
