package traces

import (
	"cmp"
	"embed"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"penstock/sim/random"
)

// The traces that come with the program; README.md says whose they are.
//
//go:embed azure_llm_2023_conv.csv azure_llm_2023_code.csv mooncake_fast25_conversation.jsonl
var files embed.FS

// Workload is who sends requests of which lengths.
type Workload struct {
	Name    string
	Tenants int
	Abuser  bool // tenant 0 sends far more than its part
	Low     int  // requests of a second tier, whose tenant is 1; who plays the workload sends them
	streams []stream
}

// stream is one tenant's part.
type stream struct {
	trace   Trace
	tenant  int
	share   float64 // of all requests
	outputs int     // output lengths times this
}

// Workloads are the names that Load knows beside files: conversations (Azure 2023),
// the same with outputs five times as long, code completion (Azure 2023), long
// prompts (Mooncake 2025), eight tenants, conversation and code in turn, of whom the
// first sends ten times as much as each other, and conversations with a backlog of
// 20,000 short requests of a lower tier behind them.
func Workloads() []string {
	return []string{"conv", "conv-x5", "code", "mooncake", "tenants", "tiers"}
}

// Load makes a workload of a name or of a trace file.
func Load(name string) (*Workload, error) {
	one := func(file string, outputs int) (*Workload, error) {
		t, err := included(file)
		return &Workload{Name: name, Tenants: 1, streams: []stream{{trace: t, share: 1, outputs: outputs}}}, err
	}
	const conv, code = "azure_llm_2023_conv.csv", "azure_llm_2023_code.csv"
	switch name {
	case "conv":
		return one(conv, 1)
	case "conv-x5":
		return one(conv, 5)
	case "code":
		return one(code, 1)
	case "mooncake":
		return one("mooncake_fast25_conversation.jsonl", 1)
	case "tenants":
		return tenants(conv, code)
	case "tiers":
		w, err := one(conv, 1)
		w.Tenants, w.Low = 2, lowRequests
		return w, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("no workload and no readable file %q (%w): give a trace file or one of %v", name, err, Workloads())
	}
	defer func() { _ = f.Close() }()
	t, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Workload{Name: name, Tenants: 1, streams: []stream{{trace: t, share: 1, outputs: 1}}}, nil
}

func included(file string) (Trace, error) {
	f, err := files.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return Read(f)
}

const (
	tenantCount = 8
	abuserTimes = 10
	lowRequests = 20_000
)

func tenants(conv, code string) (*Workload, error) {
	a, err := included(conv)
	if err != nil {
		return nil, err
	}
	b, err := included(code)
	if err != nil {
		return nil, err
	}
	w := &Workload{Name: "tenants", Tenants: tenantCount, Abuser: true}
	for i := range tenantCount {
		s := stream{trace: a, tenant: i, share: 1.0 / (tenantCount - 1 + abuserTimes), outputs: 1}
		if i%2 == 1 {
			s.trace = b
		}
		if i == 0 {
			s.share *= abuserTimes
		}
		w.streams = append(w.streams, s)
	}
	return w, nil
}

// Arrival is one request on its way to a simulated world.
type Arrival struct {
	Request
	Tenant int
	Guess  float64 // the estimated prompt over the true one
	Extra  bool    // of a burst
	Low    bool    // of the second tier
}

// Arrivals is what comes within span at rate requests per second: a piece of each
// trace, its pauses stretched or shortened alike so that it lasts that long. shift of
// shifts says where in the trace it begins; a trace that ends goes on from its start.
func (w *Workload) Arrivals(rate float64, span time.Duration, seed uint64, shift, shifts int) []Arrival {
	var out []Arrival
	for i := range w.streams {
		s := &w.streams[i]
		begin := random.Fraction(random.Mix(seed, uint64(i))) + float64(shift)/float64(shifts)
		first := int(begin*float64(len(s.trace))) % len(s.trace)
		out = s.piece(out, first, max(int(math.Round(rate*s.share*span.Seconds())), 1), span)
	}
	slices.SortStableFunc(out, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	for i := range out {
		out[i].Guess = 0.9 + 0.2*random.Fraction(random.Mix(seed+1, uint64(i)))
	}
	return out
}

func (s *stream) piece(out []Arrival, first, n int, span time.Duration) []Arrival {
	length := s.trace.span() + s.trace.span()/time.Duration(len(s.trace))
	at := func(i int) time.Duration {
		i += first
		return s.trace[i%len(s.trace)].At + time.Duration(i/len(s.trace))*length
	}
	stretch := span.Seconds() / (at(n) - at(0)).Seconds()
	for i := range n {
		r := s.trace[(first+i)%len(s.trace)]
		r.At, r.Output = time.Duration(float64(at(i)-at(0))*stretch), r.Output*s.outputs
		r.Prefix = Lap(r.Prefix, (first+i)/len(s.trace))
		out = append(out, Arrival{Request: r, Tenant: s.tenant})
	}
	return out
}

// Lap makes the ids of a trace played once more new ones.
func Lap(ids []uint64, n int) []uint64 {
	if n == 0 || len(ids) == 0 {
		return ids
	}
	again := make([]uint64, len(ids))
	for i, id := range ids {
		again[i] = random.Mix(id, uint64(n))
	}
	return again
}
