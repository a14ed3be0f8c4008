package cost

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock/lane"
)

func TestValidateNamesTheField(t *testing.T) {
	for field, spoil := range map[string]func(*Config){
		"BytesPerToken": func(c *Config) { c.BytesPerToken = math.NaN() },
		"ImageTokens":   func(c *Config) { c.ImageTokens = -1 },
		"Output":        func(c *Config) { c.Output = 0 },
		"Quantile":      func(c *Config) { c.Quantile = 1 },
		"Window":        func(c *Config) { c.Window = 0 },
		"Enough":        func(c *Config) { c.Enough = 513 },
		"Classes":       func(c *Config) { c.Classes = 0 },
	} {
		cfg := DefaultConfig()
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("New with a bad %s: %v, want an error that names it", field, err)
		}
	}
}

func estimator(t testing.TB, change func(*Config)) *Estimator {
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestPromptBeforeAnythingIsKnown(t *testing.T) {
	e := estimator(t, nil)
	for _, c := range []struct{ bytes, images, want int }{
		{0, 0, 1},
		{-5, -5, 1},
		{1, 0, 1},
		{4000, 0, 1000},
		{4001, 0, 1001},
		{4000, 2, 1000 + 2*1024},
		{math.MaxInt, math.MaxInt, math.MaxInt32},
	} {
		if got := e.Prompt("m", c.bytes, c.images); got != c.want {
			t.Errorf("Prompt(%d bytes, %d images) = %d, want %d", c.bytes, c.images, got, c.want)
		}
	}
}

func TestRatioFollowsUsage(t *testing.T) {
	e := estimator(t, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		tokens := 20 + rng.IntN(4000)
		images := rng.IntN(2)
		e.Learn(Class{"a", "m"}, int(2.5*float64(tokens)), images, tokens+images*1024, 10)
	}
	if got := e.Ratio("m"); math.Abs(got-2.5) > 0.05 {
		t.Errorf("ratio %.3f after 1,000 prompts of 2.5 bytes per token", got)
	}
	if got := e.Ratio("other"); got != 4 {
		t.Errorf("ratio of a model never seen is %v, want 4", got)
	}
	e.Learn(Class{"a", "m"}, 100, 0, 0, 10) // no usage
	e.Learn(Class{"a", "m"}, 0, 3, 3000, 10)
	if got := e.Ratio("m"); math.Abs(got-2.5) > 0.05 {
		t.Errorf("ratio %.3f after requests that say nothing about it", got)
	}
	for range 2000 {
		e.Learn(Class{"a", "m"}, 1_000_000, 0, 1, 10)
	}
	if got := e.Ratio("m"); got != maxRatio {
		t.Errorf("ratio %v of bodies that are no prompt, want the bound %v", got, maxRatio)
	}
}

// TestRatioChanges: the traffic of a model turns to another language. What the next
// request is quoted is 10 % off after 600 more at most, and meanwhile no further off
// than the ratios are.
func TestRatioChanges(t *testing.T) {
	e := estimator(t, nil)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, ratio := range []float64{4, 1.8, 5.5, 2.5} {
		before := e.Ratio("m")
		for i := range 1000 {
			tokens := 50 + rng.IntN(3000)
			bytes := int(float64(tokens) * ratio * (0.8 + 0.4*rng.Float64()))
			low, high := min(before, ratio)/1.1, max(before, ratio)*1.1
			if i >= 600 {
				low, high = ratio/1.1, ratio*1.1
			}
			if quoted := float64(bytes) / float64(e.Prompt("m", bytes, 0)); quoted < low || quoted > high {
				t.Fatalf("%d requests after the change to %v bytes per token: quoted at %.2f, want %.2f to %.2f", i, ratio, quoted, low, high)
			}
			e.Learn(Class{"a", "m"}, bytes, 0, tokens, 10)
		}
	}
}

// TestImages: what an image is to a model is learned apart from its text.
func TestImages(t *testing.T) {
	e := estimator(t, nil)
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		tokens, images := 20+rng.IntN(2000), 1+rng.IntN(3)
		e.Learn(Class{"a", "m"}, 3*tokens, 0, tokens, 10)
		e.Learn(Class{"a", "m"}, 4*100, images, 100+images*2500, 10)
	}
	if got := e.Ratio("m"); math.Abs(got-3) > 0.05 {
		t.Errorf("ratio %.3f of text at 3 bytes per token beside images", got)
	}
	if got := e.Prompt("m", 300, 2); math.Abs(float64(got)-5100) > 150 {
		t.Errorf("two images and 100 tokens of text are quoted at %d, want about 5100", got)
	}
	if got := e.Prompt("other", 400, 2); got != 100+2*1024 {
		t.Errorf("a model never seen is quoted at %d, want the start", got)
	}
	for range 3000 {
		e.Learn(Class{"a", "m"}, 4, 1, 1<<30, 10)
	}
	if got := e.Image("m"); got != maxImage {
		t.Errorf("%v tokens of an image that is none, want the bound %v", got, maxImage)
	}
}

func TestOutputFallsBack(t *testing.T) {
	e := estimator(t, nil)
	a, b := Class{"a", "m"}, Class{"b", "m"}
	check := func(when string, c Class, maxTokens, want int) {
		t.Helper()
		if got := e.Output(c, maxTokens); got != want {
			t.Errorf("%s: Output(%v, %d) = %d, want %d", when, c, maxTokens, got, want)
		}
	}
	check("nothing known", a, 0, 200)
	check("nothing known", a, 50, 50)
	check("nothing known", a, 500, 200)
	for i := range 49 {
		e.Learn(a, 0, 0, 0, i+1)
	}
	check("49 finishes", a, 0, 200)
	e.Learn(a, 0, 0, 0, 50)
	check("50 finishes", a, 0, 35)
	check("another tenant", b, 0, 35)
	check("another model", Class{"a", "n"}, 0, 200)
	for range 50 {
		e.Learn(b, 0, 0, 0, 1000)
	}
	check("its own", b, 0, 1000)
	check("not another's", a, 0, 35)
	check("capped", b, 10, 10)
	for range 512 {
		e.Learn(a, 0, 0, 0, 7)
	}
	check("the old ones left the window", a, 0, 7)
	if got, want := ClassOf(lane.Key{Tenant: "a", Model: "m", Type: "chat"}), a; got != want {
		t.Errorf("ClassOf = %v, want %v", got, want)
	}
}

func TestQuantileIsThatOfTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 40).Draw(t, "window")
		q := rapid.Float64Range(0.01, 0.99).Draw(t, "q")
		l := NewLengths(window)
		var all []int
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 30), 1, 120).Draw(t, "lengths") {
			l.Add(n)
			all = append(all, n)
			last := slices.Sorted(slices.Values(all[max(0, len(all)-window):]))
			want := last[min(max(int(math.Ceil(q*float64(len(last))))-1, 0), len(last)-1)]
			if got := l.Quantile(q); got != want {
				t.Fatalf("quantile %v of %v is %d, want %d", q, last, got, want)
			}
		}
	})
}

func TestClassesAreBounded(t *testing.T) {
	e := estimator(t, func(c *Config) { c.Classes, c.Window, c.Enough = 8, 4, 1 })
	steady := Class{"steady", "m"}
	for i := range 1000 {
		e.Learn(steady, 10, 0, 5, 3)
		name := strconv.Itoa(i)
		e.Learn(Class{name, "model " + name}, 10, 0, 5, 9)
	}
	if len(e.classes) > 8 || len(e.models) > 8 {
		t.Errorf("%d classes and %d models held, bound 8", len(e.classes), len(e.models))
	}
	if got := e.Output(steady, 0); got != 3 {
		t.Errorf("the class in use expects %d, want 3: it must not give way", got)
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	e := estimator(t, nil)
	c := Class{"a", "m"}
	e.Learn(c, 400, 0, 100, 50)
	n := 0
	if got := testing.AllocsPerRun(2000, func() {
		n++
		_ = e.Prompt("m", 4000, 1) + e.Output(c, 100)
		e.Learn(c, 400, 0, 100, n%700)
	}); got != 0 {
		t.Errorf("%v allocations per request, want 0", got)
	}
}

func BenchmarkRequest(b *testing.B) {
	e := estimator(b, nil)
	c := Class{"a", "m"}
	rng := rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		_ = e.Prompt("m", 4000, 0) + e.Output(c, 1000)
		e.Learn(c, 4000, 0, 1000, rng.IntN(2000))
	}
}
