package rocketmq

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/queue"
	"penstock/queue/rocketmq/proxy"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

func full() *queue.Message {
	return &queue.Message{
		Version: 1, ID: "00112233445566778899aabbccddeeff",
		Lane:  lane.Key{Tier: "gold", Type: "chat", Model: "qwen2.5/7b", Pool: "h200", Tenant: "acme & söhne\x00\xff"},
		Shard: 31, Path: "/v1/chat/completions",
		Opened: time.UnixMilli(1_700_000_000_123).UTC(), Deadline: time.UnixMilli(1_700_000_030_123).UTC(),
		SLOTTFT: 2 * time.Second, SLOTTFTNamed: true, Patient: true, SLOTPOT: 100 * time.Millisecond,
		PromptTokens: 1000, SafePrompt: 900, ExpectedOut: 200, MaxTokens: 300, Sequences: 2, Stream: true,
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Reply: "gateway-1/0",
		Body: []byte("{\"prompt\":\"a\x00\xff\"}\n"),
	}
}

// wire is a message as text: its properties in order, an empty line, its body.
func wire(p map[string]string, body []byte) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", name, p[name])
	}
	fmt.Fprintf(&b, "\n%s", body)
	return b.String()
}

func unwire(t *testing.T, s string) (map[string]string, []byte) {
	t.Helper()
	head, body, ok := strings.Cut(s, "\n\n")
	if !ok {
		t.Fatalf("no body in %q", s)
	}
	p := map[string]string{}
	for line := range strings.Lines(head) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		p[name] = value
	}
	return p, []byte(body)
}

// TestGolden holds the wire form: other versions read and write it. A new version
// gets files of its own; these stay.
func TestGolden(t *testing.T) {
	for name, m := range map[string]*queue.Message{
		"v1_full":  full(),
		"v1_least": {Version: 1, ID: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".txt")
			got := wire(encode(m, 0))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("wire form (-want +got):\n%s", diff)
			}
			p, body := unwire(t, string(want))
			p["INNER_MULTI_DISPATCH"] = "the broker's own"
			back, err := decode(p, body, 0)
			if err != nil {
				t.Fatalf("decode: %v", err)
			}
			if diff := cmp.Diff(m, back); diff != "" {
				t.Errorf("there and back (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTimesTravelByTheFleetsClock(t *testing.T) {
	m := full()
	p, body := encode(m, 3*time.Second) // the gateway's clock is 3 s behind
	back, err := decode(p, body, -2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.Deadline.Add(5 * time.Second); !back.Deadline.Equal(want) { // the agent's 2 s ahead
		t.Errorf("deadline %v, want %v", back.Deadline, want)
	}
	if want := m.Opened.Add(5 * time.Second); !back.Opened.Equal(want) {
		t.Errorf("opened %v, want %v", back.Opened, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change map[string]string
		ok     bool
	}{
		"nothing wrong":                      {nil, true},
		"no id":                              {map[string]string{pID: ""}, false},
		"version is no number":               {map[string]string{pVersion: "x"}, false},
		"a number is none":                   {map[string]string{pPrompt: "1e3"}, false},
		"a negative number":                  {map[string]string{pSeqs: "-1"}, false},
		"a number beyond float64":            {map[string]string{pMax: "9007199254740993"}, false},
		"a duration beyond a day":            {map[string]string{pTTFT: "86400001"}, false},
		"an escape is broken":                {map[string]string{pTenant: "%zz"}, false},
		"unknown version":                    {map[string]string{pVersion: "9"}, true},
		"unknown version, unreadable number": {map[string]string{pVersion: "9", pPrompt: "many"}, true},
		"unknown version, no id":             {map[string]string{pVersion: "9", pID: ""}, false},
		"no version":                         {map[string]string{pVersion: ""}, true}, // 0: the handler's business
	} {
		t.Run(name, func(t *testing.T) {
			p, body := encode(full(), 0)
			maps.Copy(p, tc.change)
			m, err := decode(p, body, 0)
			if (err == nil) != tc.ok || err != nil && !errors.Is(err, errMalformed) {
				t.Fatalf("decode = %v, ok is %v", err, tc.ok)
			}
			if err == nil && m.ID != full().ID {
				t.Errorf("id %q", m.ID)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*queue.Message)
		says   string
	}{
		"usual":               {func(*queue.Message) {}, ""},
		"largest body":        {func(m *queue.Message) { m.Body = make([]byte, proxy.MaxBody) }, ""},
		"body too large":      {func(m *queue.Message) { m.Body = make([]byte, proxy.MaxBody+1) }, "maxMessageSize"},
		"tenant of 10 kB":     {func(m *queue.Message) { m.Lane.Tenant = strings.Repeat("x", 10_000) }, ""},
		"tenant of 10 kB NUL": {func(m *queue.Message) { m.Lane.Tenant = strings.Repeat("\x00", 10_000) }, "16 KiB"},
		"long traceparent":    {func(m *queue.Message) { m.Traceparent = strings.Repeat("x", 20_000) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := full()
			tc.change(m)
			p, _ := encode(m, 0)
			err := bounded(m, p)
			if tc.says == "" && err != nil || tc.says != "" && (!errors.Is(err, queue.ErrTooLarge) || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("bounded = %v, want ErrTooLarge naming %q", err, tc.says)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("9", "1", "acme", "12", []byte("x"))
	f.Add("1", "%00", "%zz", "-1", []byte(nil))
	f.Fuzz(func(t *testing.T, version, id, tenant, number string, body []byte) {
		p := map[string]string{pVersion: version, pID: id, pTenant: tenant, pDeadline: number, pMax: number, pTTFT: number}
		m, err := decode(p, body, 0)
		if err != nil {
			return
		}
		p2, body2 := encode(m, 0)
		back, err := decode(p2, body2, 0)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if m.Version <= queue.Version {
			if diff := cmp.Diff(m.Lane, back.Lane); diff != "" || m.ID != back.ID || !m.Deadline.Equal(back.Deadline) {
				t.Errorf("there and back: %s %q %q %v %v", diff, m.ID, back.ID, m.Deadline, back.Deadline)
			}
		}
	})
}
