package abort

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func keysOf(t testing.TB, secrets ...string) Keys {
	t.Helper()
	raw := make([][]byte, len(secrets))
	for i, s := range secrets {
		raw[i] = []byte(s)
	}
	keys, err := NewKeys(raw...)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func message() Message {
	return Message{ID: "0123456789abcdef0123456789abcdef", Attempt: "a1", Owner: "gpu-1:8000", Origin: "gateway-2", Seq: 77, Left: 30 * time.Second}
}

// bytesOf is m as keys send it.
func bytesOf(t testing.TB, m Message, keys Keys) []byte {
	t.Helper()
	b, err := Append(nil, &m, keys)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden holds the bytes of version 1: another process reads what this one wrote.
func TestGolden(t *testing.T) {
	keys := keysOf(t, "0123456789abcdef")
	long := strings.Repeat("x", 99)
	largest := Message{ID: long[:MaxID], Attempt: long[:MaxID], Owner: long, Origin: long, Seq: 1<<64 - 1, Left: time.Hour}
	for name, got := range map[string][]byte{
		"abort-v1": bytesOf(t, message(), keys), "abort-no-key-v1": bytesOf(t, message(), nil), "abort-largest-v1": bytesOf(t, largest, keys),
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
	b := bytesOf(t, largest, keys)
	if len(b) != 259 || len(b) > MaxSize {
		t.Errorf("the largest message takes %d bytes, want 259", len(b))
	}
	largest.Owner, largest.Origin, largest.Left = long[:MaxName], long[:MaxName], MaxLeft
	if got, err := Parse(b, keys); err != nil || got != largest {
		t.Errorf("Parse = %+v, %v; want %+v", got, err, largest)
	}
}

// TestKeys: who takes whose messages, with one key, two during a rotation, or none.
func TestKeys(t *testing.T) {
	none, old, both, next := Keys(nil), keysOf(t, "old"), keysOf(t, "old", "new"), keysOf(t, "new")
	for _, tt := range []struct {
		name     string
		from, to Keys
		want     error
	}{
		{"one key", old, old, nil},
		{"another key", old, next, ErrForged},
		{"the key is being added", old, both, nil},
		{"the other end has it already", both, old, nil},
		{"the old one is gone", keysOf(t, "new", "old"), next, nil},
		{"no keys", none, none, nil},
		{"no MAC where there is a key", none, old, ErrForged},
		{"a MAC where there is no key", old, none, ErrForged},
		{"the secret itself", Keys{[]byte("old")}, old, ErrForged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := message()
			if tt.want != nil {
				want = Message{}
			}
			got, err := Parse(bytesOf(t, message(), tt.from), tt.to)
			if !errors.Is(err, tt.want) || got != want {
				t.Errorf("Parse = %+v, %v; want %+v, %v", got, err, want, tt.want)
			}
		})
	}
}

func TestAppendRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*Message)
		want error
	}{
		{"no id", func(m *Message) { m.ID = "" }, ErrEmpty},
		{"long id", func(m *Message) { m.ID = strings.Repeat("x", MaxID+1) }, ErrMalformed},
		{"long attempt", func(m *Message) { m.Attempt = strings.Repeat("x", MaxID+1) }, ErrMalformed},
		{"no time left", func(m *Message) { m.Left = 0 }, ErrExpired},
		{"less than it can say", func(m *Message) { m.Left = time.Millisecond - 1 }, ErrExpired},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := message()
			tt.set(&m)
			if got, err := Append([]byte("before"), &m, nil); !errors.Is(err, tt.want) || string(got) != "before" {
				t.Errorf("Append = %q, %v; want %v", got, err, tt.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	keys := keysOf(t, "key")
	good := bytesOf(t, message(), keys)
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	// signed is what somebody with the key wrote that Append would not.
	signed := func(left byte, id string) []byte {
		b := []byte{Kind, version, 0, left, 0, left, 0, 0, 0, 0, 0, 0, 0, 1, byte(len(id))}
		b = append(append(b, id...), 0, 0, 0, macSize)
		return append(b, mac(keys[0], b)...)
	}
	for _, tt := range []struct {
		name string
		b    []byte
		want error
	}{
		{"nothing", nil, ErrMalformed},
		{"another kind", change(0, 'R'), ErrMalformed},
		{"version 0", change(1, 0), ErrVersion},
		{"the next version", change(1, version+1), ErrVersion},
		{"the next version, shorter", []byte{Kind, version + 1}, ErrVersion},
		{"another time", change(5, 1), ErrForged},
		{"another seq", change(13, 78), ErrForged},
		{"another id", change(15, 'x'), ErrForged},
		{"id past the end", change(14, 64), ErrMalformed},
		{"id too long", change(14, 65), ErrMalformed},
		{"another MAC", change(len(good)-1, good[len(good)-1]^1), ErrForged},
		{"MAC past the end", change(len(good)-17, 17), ErrMalformed},
		{"more behind", append(bytes.Clone(good), 0), ErrMalformed},
		{"too long a life", signed(1, "x"), ErrMalformed},
		{"expired", signed(0, "x"), ErrExpired},
		{"no id", signed(0, ""), ErrEmpty},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse(tt.b, keys)
			if !errors.Is(err, tt.want) || m != (Message{}) {
				t.Errorf("Parse = %+v, %v; want %v", m, err, tt.want)
			}
		})
	}
	for n := range good {
		if _, err := Parse(good[:n], keys); !errors.Is(err, ErrMalformed) {
			t.Errorf("the first %d bytes: %v, want %v", n, err, ErrMalformed)
		}
	}
}

func TestFaults(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Faults() {
		if f.String() == "none" || seen[f.String()] {
			t.Errorf("fault %d has the label %q", f, f)
		}
		seen[f.String()] = true
	}
	if len(seen) != int(endFault)-1 {
		t.Errorf("Faults lists %d, want %d", len(seen), endFault-1)
	}
}

func FuzzParse(f *testing.F) {
	keys := keysOf(f, "key")
	f.Add(bytesOf(f, message(), nil))
	f.Add(bytesOf(f, message(), keys))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Parse(b, keys); err == nil && !bytes.Equal(b, bytesOf(t, message(), keys)) {
			t.Errorf("%x passes without the key", b)
		}
		m, err := Parse(b, nil)
		if err != nil {
			return
		}
		if again := bytesOf(t, m, nil); !bytes.Equal(again, b) {
			t.Errorf("%x is read and written as %x", b, again)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	keys := keysOf(b, "key")
	encoded := bytesOf(b, message(), keys)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(encoded, keys); err != nil {
			b.Fatal(err)
		}
	}
}
