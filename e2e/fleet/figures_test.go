//go:build e2e

package fleet

import (
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestFigures prints what the way through broker and Redis costs. It bounds nothing:
// the machine is shared.
func TestFigures(t *testing.T) {
	f := the(t)
	rounds, ceiling := 50, 2*time.Second
	if *full {
		rounds, ceiling = 500, 20*time.Second
	}
	single := &part{name: "standalone", log: filepath.Join(home, "standalone.log"), url: "http://" + addr(60), admin: "http://" + addr(61)}
	single.args = []string{"standalone", "--listen", addr(60), "--admin", addr(61), "--grpc", addr(62), "--engine", f.engines[0].url}
	if err := single.start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := single.end(syscall.SIGTERM, 40*time.Second); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, 20*time.Second, func() string {
		if ok, why := single.ready(); !ok {
			return why
		}
		return ""
	})
	var queued, through, direct []float64
	for i := range rounds { // interleaved: both meet the same machine
		for _, g := range []*part{f.gateways[i%2], single} {
			a := ask{model: alpha, prompt: fmt.Sprintf("figures %d", i), tokens: 1, stream: true, key: key(0)}
			r := send(t.Context(), g, a, nil)
			if got, err := f.judge(r); got != whole || err != nil {
				t.Fatalf("%s: %s %v", g.name, got, err)
			}
			ms := float64(r.first.Microseconds()) / 1000
			if g == single {
				direct = append(direct, ms)
				continue
			}
			through = append(through, ms)
			wait, err := strconv.ParseFloat(r.header.Get("X-Penstock-Queue-Ms"), 64)
			if err != nil {
				t.Fatal(err)
			}
			queued = append(queued, wait)
		}
	}
	t.Logf("machine: %d CPUs, %s/%s, shared", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	t.Logf("arrival to engine start through broker and Redis, one request at a time: p50 %.0f ms, p99 %.0f ms", quantile(queued, .5), quantile(queued, .99))
	t.Logf("first token of a stream: standalone p50 %.1f p99 %.1f ms, fleet p50 %.1f p99 %.1f ms; added p50 %.1f ms",
		quantile(direct, .5), quantile(direct, .99), quantile(through, .5), quantile(through, .99), quantile(through, .5)-quantile(direct, .5))
	t.Log(f.ceiling(t, ceiling))
}

// ceiling is how many small requests a second 64 clients get through the fleet, which
// has one machine for itself, its engines and them.
func (f *fleet) ceiling(t *testing.T, span time.Duration) string {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	var took []float64
	refused := 0
	end := time.Now().Add(span)
	for c := range 64 {
		all.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				r := send(t.Context(), f.gateways[c%2], ask{model: alpha, prompt: fmt.Sprintf("ceiling %d %d", c, i), tokens: 1, key: key(c)}, nil)
				mu.Lock()
				if r.status == http.StatusOK && r.broken == nil {
					took = append(took, float64(r.took.Microseconds())/1000)
				} else {
					refused++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return fmt.Sprintf("ceiling: 64 clients in a closed loop: %.0f requests/s, p50 %.0f ms, p99 %.0f ms, %d refused",
		float64(len(took))/span.Seconds(), quantile(took, .5), quantile(took, .99), refused)
}

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}
