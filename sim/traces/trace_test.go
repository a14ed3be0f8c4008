package traces

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	azure := "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.5,374,44\r\n2023-11-16 18:17:04.25,396,109"
	for _, c := range []struct {
		name, in string
		want     Trace
	}{
		{"azure, CRLF, no newline at the end", azure, Trace{{0, 374, 44, nil}, {750 * time.Millisecond, 396, 109, nil}}},
		{"azure with a zone", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 00:00:01.009930+00:00,3,4\n", Trace{{0, 1, 2, nil}, {time.Second, 3, 4, nil}}},
		{
			"burstgpt: more columns, a failure left out",
			"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,Conversation log\n",
			Trace{{0, 472, 18, nil}, {113 * time.Second, 417, 276, nil}},
		},
		{"out of order, an empty prompt", "timestamp,contexttokens,generatedtokens\n7,5,6\n3,0,4\n", Trace{{0, 1, 4, nil}, {4 * time.Second, 5, 6, nil}}},
		{
			"mooncake: stamps spread over their step",
			`{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [0, 1]}` + "\n" +
				`{"timestamp": 0, "input_length": 20, "output_length": 2}` + "\n\n" +
				`{"timestamp": 3000, "input_length": 30, "output_length": 3}` + "\n" +
				`{"timestamp": 3000, "input_length": 40, "output_length": 4}`,
			Trace{{0, 10, 1, nil}, {1500 * time.Millisecond, 20, 2, nil}, {3 * time.Second, 30, 3, nil}, {4500 * time.Millisecond, 40, 4, nil}},
		},
		{
			"mooncake: ids of 512 tokens each, others left out",
			`{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [7, 8]}` + "\n" +
				`{"timestamp": 3000, "input_length": 512, "output_length": 2, "hash_ids": [7, 8]}`,
			Trace{{0, 513, 1, []uint64{7, 8}}, {3 * time.Second, 512, 2, nil}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(strings.NewReader(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadNamesTheLine(t *testing.T) {
	const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for _, c := range []struct{ name, in, want string }{
		{"nothing", "", "line 1"},
		{"no header", "1,2,3\n4,5,6\n", "line 1: the header is"},
		{"one request", header + "1,2,3\n", "1 requests, want at least 2"},
		{"one moment", header + "1,2,3\n1,2,3\n", "all requests arrive at one time"},
		{"a field too few", header + "1,2,3\n4,5\n", "line 3"},
		{"no number", header + "1,2,3\n4,many,6\n", `line 3: lengths "many" and "6"`},
		{"negative", header + "1,2,3\n4,-5,6\n", "line 3: lengths -5 and 6"},
		{"too long", header + "1,2,3\n4,99999999,6\n", "line 3: lengths"},
		{"no time", header + "yesterday,2,3\n", `line 2: timestamp "yesterday"`},
		{"a time that is none", header + "NaN,2,3\n", `line 2: timestamp "NaN" is out of range`},
		{"before 1970", header + "1600-01-01 00:00:00,2,3\n", "line 2: timestamp is out of range"},
		{"json cut off", `{"timestamp": 0, "input_length": 1, "output_length": 1}` + "\n" + `{"timestamp": 1, "inp`, "line 2"},
		{"json without a key", `{"timestamp": 0, "input_length": 1}`, "line 1: want timestamp, input_length and output_length"},
		{"json time", `{"timestamp": -1, "input_length": 1, "output_length": 1}`, "line 1: timestamp -1 is out of range"},
		{"json line without end", `{"x": "` + strings.Repeat("y", mostLine), "after 0 requests"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := Read(strings.NewReader(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%d requests and error %v, want one with %q", len(got), err, c.want)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.5,374,44\n9,1,1\n")
	f.Add(`{"timestamp": 0, "input_length": 10, "output_length": 1}` + "\n" + `{"timestamp": 9, "input_length": 1, "output_length": 1}`)
	f.Fuzz(func(t *testing.T, in string) {
		trace, err := Read(strings.NewReader(in))
		if err != nil {
			return
		}
		if len(trace) < 2 || trace[0].At != 0 || trace.span() <= 0 {
			t.Fatalf("%d requests over %v", len(trace), trace.span())
		}
		for i, r := range trace {
			if r.Prompt < 1 || r.Output < 1 || i > 0 && r.At < trace[i-1].At {
				t.Fatalf("request %d is %+v", i, r)
			}
		}
		w := Workload{Name: "fuzz", Tenants: 1, streams: []stream{{trace: trace, share: 1, outputs: 1}}}
		for _, a := range w.Arrivals(1, 10*time.Second, 1, 0, 1) {
			if a.At < 0 || a.At >= 10*time.Second+time.Millisecond {
				t.Fatalf("arrival at %v of 10s", a.At)
			}
		}
	})
}

func TestWorkloads(t *testing.T) {
	for _, name := range Workloads() {
		t.Run(name, func(t *testing.T) {
			w, err := Load(name)
			if err != nil {
				t.Fatal(err)
			}
			const rate, span = 20.0, 100 * time.Second
			byTenant := make([]int, w.Tenants)
			a := w.Arrivals(rate, span, 1, 0, 3)
			for i, r := range a {
				byTenant[r.Tenant]++
				if i > 0 && r.At < a[i-1].At || r.At >= span {
					t.Fatalf("request %d arrives at %v after %v", i, r.At, a[i-1].At)
				}
			}
			if got := float64(len(a)) / span.Seconds(); got < rate*0.99 || got > rate*1.01 {
				t.Errorf("%.2f requests per second, want %g", got, rate)
			}
			if w.Abuser && (byTenant[0] < 9*byTenant[1] || byTenant[0] > 11*byTenant[1]) {
				t.Errorf("the abuser sends %d, another %d; want ten times as much", byTenant[0], byTenant[1])
			}
			if cmp.Equal(a[0].Request, w.Arrivals(rate, span, 1, 1, 3)[0].Request) && cmp.Equal(a[1].Request, w.Arrivals(rate, span, 1, 1, 3)[1].Request) {
				t.Error("another shift begins at the same place")
			}
		})
	}
}
