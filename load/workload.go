package load

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Shape is the length of one request in tokens.
type Shape struct{ Prompt, Output int }

// ReadAzure reads request lengths from an Azure LLM inference trace of 2023:
// a header, then TIMESTAMP,ContextTokens,GeneratedTokens; LF or CRLF.
// An error names the line.
func ReadAzure(r io.Reader) ([]Shape, error) {
	var shapes []Shape
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Split(strings.TrimSpace(lines.Text()), ",")
		if n == 1 || len(fields) == 1 && fields[0] == "" {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("azure trace line %d: %d fields, want TIMESTAMP,ContextTokens,GeneratedTokens", n, len(fields))
		}
		prompt, err1 := strconv.Atoi(fields[1])
		output, err2 := strconv.Atoi(fields[2])
		if err1 != nil || err2 != nil || prompt < 0 || output < 0 {
			return nil, fmt.Errorf("azure trace line %d: lengths %q and %q are not numbers >= 0", n, fields[1], fields[2])
		}
		shapes = append(shapes, Shape{prompt, output})
	}
	return shapes, lines.Err()
}

// Poisson gives count arrivals at rate per second, of shapes in order from a
// place that seed chooses; the same seed gives the same workload.
func Poisson(shapes []Shape, rate float64, count int, seed uint64) []Arrival {
	random := rand.New(rand.NewPCG(seed, 0))
	start := random.IntN(len(shapes))
	arrivals := make([]Arrival, count)
	at := time.Duration(0)
	for i := range arrivals {
		at += time.Duration(random.ExpFloat64() / rate * float64(time.Second))
		shape := shapes[(start+i)%len(shapes)]
		arrivals[i] = Arrival{At: at, Prompt: max(1, shape.Prompt), Output: max(1, shape.Output)}
	}
	return arrivals
}

// Steady moves and stretches arrivals, which must not be empty, so that the first
// comes at once and one more would come at span: played again and again they are a
// steady load.
func Steady(arrivals []Arrival, span time.Duration) []Arrival {
	n := len(arrivals)
	first, last := arrivals[0].At, arrivals[n-1].At
	stretch := span.Seconds() / max((last-first).Seconds()*float64(n+1)/float64(n), 1e-9)
	out := make([]Arrival, n)
	for i, a := range arrivals {
		a.At = time.Duration(float64(a.At-first) * stretch)
		out[i] = a
	}
	return out
}
